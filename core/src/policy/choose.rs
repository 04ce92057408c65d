//! From an ask to a request document: the first kind in the policy's order that the cluster can serve.

use super::{Policy, Supply};
use crate::contract::{ContainerRequest, REQUEST_VERSION, RequestDocument};
use crate::kind::{IsolationClass, Kind};
use crate::mig::catalog;
use crate::request::{ContainerAsk, PodAsk, Want};
use crate::resource::{ResourceName, share_size};
use crate::units::{LARGEST_SIZE, SizeGb};
use std::fmt;
use thiserror::Error;

/// How a request will be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The document for the pod.
    pub document: RequestDocument,
    /// What the user should know.
    pub warnings: Vec<Warning>,
}

/// What a user should know about an accepted request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warning {
    /// No GPU can serve it at present.
    NoSupply(String, SizeGb, IsolationClass),
    /// The slice has less memory than the size says.
    LessThanNominal(String, SizeGb, ResourceName, crate::units::MemoryMib),
    /// The size was rounded up to the next that has a name.
    RoundedUp(String, SizeGb, SizeGb),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSupply(container, size, class) => write!(
                f,
                "container {container}: no GPU of the cluster serves {} GB with isolation {class} at present; the pod waits for one",
                size.0
            ),
            Self::LessThanNominal(container, size, resource, memory) => write!(
                f,
                "container {container}: {resource} really has {memory}, less than the {}Mi of {} GiB",
                size.share_memory().0,
                size.0
            ),
            Self::RoundedUp(container, asked, given) => {
                write!(
                    f,
                    "container {container}: shares come in fixed sizes, {} GB takes {} GB",
                    asked.0, given.0
                )
            }
        }
    }
}

/// Why a policy refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Denied {
    /// The class is not allowed.
    #[error(
        "metadata.annotations[kerf.dev/isolation]: policy {policy} does not allow {class}; it allows {allowed}"
    )]
    Class {
        /// The policy.
        policy: String,
        /// What was asked.
        class: IsolationClass,
        /// What would be allowed.
        allowed: String,
    },
    /// Too many slices.
    #[error(
        "container {container}: {count} slices are more than the {max} that policy {policy} allows; ask for fewer or larger ones"
    )]
    Count {
        /// The container.
        container: String,
        /// What was asked.
        count: u32,
        /// The most.
        max: u32,
        /// The policy.
        policy: String,
    },
    /// The kind that the user named does not keep the class's promise.
    #[error(
        "container {container}: {resource} does not give isolation {class} under policy {policy}, which serves it by {kinds}; ask by size or for another class"
    )]
    Kind {
        /// The container.
        container: String,
        /// What was asked.
        resource: ResourceName,
        /// The class.
        class: IsolationClass,
        /// The policy.
        policy: String,
        /// The kinds that serve the class.
        kinds: String,
    },
    /// No kind of the class can hold this size on any GPU.
    #[error("container {container}: no slice of kind {kinds} can have {} GB; ask for less memory or a class with MIG", size.0)]
    Size {
        /// The container.
        container: String,
        /// What was asked.
        size: SizeGb,
        /// The kinds that serve the class.
        kinds: String,
    },
    /// The document in the pod is not what this policy would have made of the pod.
    #[error(
        "metadata.annotations[kerf.dev/request] is written by kerf and does not match the pod; remove it from the manifest"
    )]
    Forged,
}

fn join<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Chooses how `ask` is served.
pub fn choose(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Result<Choice, Denied> {
    let class = ask.isolation.unwrap_or(policy.default_isolation());
    let kinds = kinds(policy, class)?;
    let mut warnings = Vec::new();
    let mut containers = Vec::new();
    for container in &ask.containers {
        check_count(policy, &container.name, container.count)?;
        let (size_gb, resource) = resource(policy, supply, class, kinds, container, &mut warnings)?;
        containers.push(ContainerRequest {
            name: container.name.clone(),
            role: container.role,
            size_gb,
            profile: match container.want {
                Want::Profile(profile) => Some(profile),
                Want::Size(_) | Want::Compute(_) | Want::Share(..) | Want::Given(_) => None,
            },
            count: container.count,
            resource,
        });
    }
    Ok(Choice {
        document: RequestDocument { version: REQUEST_VERSION, isolation: class, containers },
        warnings,
    })
}

fn kinds(policy: &Policy, class: IsolationClass) -> Result<&[Kind], Denied> {
    policy.kinds(class).ok_or_else(|| {
        let allowed: Vec<_> =
            IsolationClass::ALL.into_iter().filter(|c| policy.kinds(*c).is_some()).collect();
        Denied::Class { policy: policy.name().to_owned(), class, allowed: join(&allowed) }
    })
}

fn check_count(policy: &Policy, container: &str, count: u32) -> Result<(), Denied> {
    if count <= policy.max_count() {
        return Ok(());
    }
    let (container, policy, max) = (container.to_owned(), policy.name().to_owned(), policy.max_count());
    Err(Denied::Count { container, count, max, policy })
}

fn resource(
    policy: &Policy,
    supply: &Supply,
    class: IsolationClass,
    kinds: &[Kind],
    container: &ContainerAsk,
    warnings: &mut Vec<Warning>,
) -> Result<(SizeGb, ResourceName), Denied> {
    let name = container.name.clone();
    let (size, resource, served) = match container.want {
        Want::Profile(profile) => (profile.size(), ResourceName::Mig(profile), supply.has_profile(profile)),
        Want::Compute(profile) => {
            (profile.of().size(), ResourceName::Compute(profile), supply.has_profile(profile.of()))
        }
        Want::Share(kind, size) => {
            let resource = share_size(size).and_then(|size| ResourceName::share(kind, size));
            let resource = resource.ok_or_else(|| Denied::Size {
                container: name.clone(),
                size,
                kinds: kind.to_string(),
            })?;
            (size, resource, supply.has_share(kind, size))
        }
        Want::Size(size) => {
            let served = kinds.iter().find_map(|kind| served(supply, *kind, size));
            let resource = served.or_else(|| kinds.iter().find_map(|kind| conceivable(*kind, size)));
            let denied = || Denied::Size { container: name.clone(), size, kinds: join(kinds) };
            (size, resource.ok_or_else(denied)?, served.is_some())
        }
        // What a pod was given is verified, and not chosen again.
        Want::Given(_) => return Err(Denied::Forged),
    };
    if !kinds.contains(&resource.kind()) || strongest_class(resource) < class {
        let (policy, kinds) = (policy.name().to_owned(), join(kinds));
        return Err(Denied::Kind { container: name, resource, class, policy, kinds });
    }
    if !served && !supply.is_empty() {
        warnings.push(Warning::NoSupply(name.clone(), size, class));
    }
    if let ResourceName::Mig(profile) = resource {
        let less = supply.memory_of(profile).filter(|memory| *memory < size.share_memory());
        warnings.extend(less.map(|memory| Warning::LessThanNominal(name, size, resource, memory)));
    } else {
        let more = resource.size().filter(|given| *given > size);
        warnings.extend(more.map(|given| Warning::RoundedUp(name, size, given)));
    }
    Ok((size, resource))
}

/// The strongest class that a slice of this name serves. Compute instances share their GPU instance's memory and faults.
fn strongest_class(resource: ResourceName) -> IsolationClass {
    match resource {
        ResourceName::Compute(_) => IsolationClass::None,
        other => other.kind().strongest_class(),
    }
}

/// The name for `size` by `kind`, if some GPU of the cluster serves it.
fn served(supply: &Supply, kind: Kind, size: SizeGb) -> Option<ResourceName> {
    match kind {
        Kind::Mig => supply.profile_for(size).map(ResourceName::Mig),
        Kind::Mps | Kind::TimeSlicing => {
            let size = share_size(size).filter(|size| supply.has_share(kind, *size))?;
            ResourceName::share(kind, size)
        }
        Kind::Whole => supply.has_whole(size).then_some(ResourceName::Whole),
    }
}

/// The name for `size` by `kind` on some GPU that exists at all: for a cluster that is scaled to zero.
fn conceivable(kind: Kind, size: SizeGb) -> Option<ResourceName> {
    match kind {
        Kind::Mig => {
            let fits = catalog::profiles().into_iter().filter(|p| p.is_plain() && p.size() >= size);
            fits.min_by_key(|p| (p.size(), p.compute())).map(ResourceName::Mig)
        }
        Kind::Mps | Kind::TimeSlicing => share_size(size).and_then(|size| ResourceName::share(kind, size)),
        Kind::Whole => (size <= LARGEST_SIZE).then_some(ResourceName::Whole),
    }
}

/// Whether `document` is one that `policy` could have made: for a pod that comes through admission a second time.
///
/// A forged document that passes gains nothing: it asks for what the policy gives anyway.
pub fn verify(policy: &Policy, document: &RequestDocument) -> Result<(), Denied> {
    let kinds = kinds(policy, document.isolation)?;
    for container in &document.containers {
        check_count(policy, &container.name, container.count)?;
        let kind = container.kind();
        let promised = container.resource.size().is_none_or(|size| size >= container.size_gb);
        let exact = container.profile.is_none_or(|profile| container.resource == ResourceName::Mig(profile));
        let isolates = strongest_class(container.resource) >= document.isolation;
        if !kinds.contains(&kind) || !isolates || !promised || !exact || container.count == 0 {
            return Err(Denied::Forged);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
