//! From an ask to a request document: the first kind in the policy's order that the cluster has room for.

mod by_name;
mod class;
mod denied;
mod level;
mod names;
mod together;
mod verify;
mod warning;
mod way;

pub use denied::Denied;
pub use verify::verify;
pub use warning::Warning;
pub(super) use way::{Way, needed};

use super::{Asked, Policy, Room, Supply};
use crate::contract::{Chosen, ContainerRequest, PassedOver, REQUEST_VERSION, Reason, RequestDocument};
use crate::kind::{IsolationClass, Kind};
use crate::request::{Claim, ContainerAsk, PodAsk, Want};
use crate::resource::ResourceName;
use crate::units::{LARGEST_SIZE, MemoryMib, SizeGb};
use names::{Need, conceivable, largest, served, strongest_class};
use std::collections::BTreeMap;

/// How a request will be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The document for the pod.
    pub document: RequestDocument,
    /// What the user should know.
    pub warnings: Vec<Warning>,
}

/// Chooses how `ask` is served.
pub fn choose(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Result<Choice, Denied> {
    let plain = outlook(policy, supply, ask);
    let Outlook { mut choice, .. } = match level::levelled(ask) {
        Some(levelled) => level::better(policy, ask, plain, outlook(policy, supply, &levelled))?,
        None => plain?,
    };
    let containers = &choice.document.containers;
    let fixed = containers.iter().any(|container| container.resource.is_plugins());
    choice.document.static_nodes = fixed || supply.may_serve_statically(&choice.document);
    Ok(choice)
}

/// What would be chosen for these very sizes.
fn outlook(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Result<Outlook, Denied> {
    if ask.containers.len() > 1 && supply.has_static() {
        together::on_one_sort_of_node(policy, supply, ask)
    } else {
        on(policy, supply, ask)
    }
}

/// A choice, and whether there is room for all of it.
#[derive(Debug)]
struct Outlook {
    choice: Choice,
    has_room: bool,
}

/// Chooses container by container, whichever nodes they would be served by.
fn on(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Result<Outlook, Denied> {
    let class = class::class(policy, supply, ask);
    let kinds = kinds(policy, class)?;
    let mut choosing = Choosing { policy, supply, ask, class, kinds, made: Made::default() };
    for container in &ask.containers {
        choosing.container(container)?;
    }
    let Made { containers, passed, waits, short, mut warnings } = choosing.made;
    warnings.extend(ask.ignored.iter().cloned().map(Warning::Ignored));
    let document = RequestDocument {
        version: REQUEST_VERSION,
        isolation: class,
        containers,
        gpus: ask.gpus.clone(),
        moves_nobody: !policy.spec().preemption.moves_others,
        static_nodes: false,
        chosen: Some(Chosen {
            policy: policy.name().to_owned(),
            by: String::new(),
            dialect: ask.dialect.map(|dialect| dialect.to_string()),
            passed,
            named: named(ask),
            selects_nodes: false,
            waits,
        }),
    };
    check_pod(policy, &document, |name| supply.at_most(name, &ask.gpus))?;
    Ok(Outlook { choice: Choice { document, warnings }, has_room: !short })
}

/// The containers that name their kind of slice.
fn named(ask: &PodAsk) -> Vec<String> {
    let named = ask.containers.iter().filter(|container| !matches!(container.want, Want::Size(_)));
    named.map(|container| container.name.clone()).collect()
}

fn kinds(policy: &Policy, class: IsolationClass) -> Result<&[Kind], Denied> {
    policy.kinds(class).ok_or_else(|| {
        let allowed: Vec<_> =
            IsolationClass::ALL.into_iter().filter(|c| policy.kinds(*c).is_some()).collect();
        Denied::Class { policy: policy.name().to_owned(), class, allowed: join(&allowed) }
    })
}

fn join<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn check_count(policy: &Policy, container: &str, count: u32) -> Result<(), Denied> {
    if count <= policy.max_count() {
        return Ok(());
    }
    let (container, policy, max) = (container.to_owned(), policy.name().to_owned(), policy.max_count());
    Err(Denied::Count { container, count, max, policy })
}

fn check_size(policy: &Policy, container: &str, size: SizeGb) -> Result<(), Denied> {
    let (container, name, sizes) = (container.to_owned(), policy.name().to_owned(), policy.spec().sizes);
    match (sizes.min_gb, sizes.max_gb) {
        (Some(min), _) if size < min => Err(Denied::TooSmall { container, size, min, policy: name }),
        (_, Some(max)) if size > max => Err(Denied::TooLarge { container, size, max, policy: name }),
        _ => Ok(()),
    }
}

/// The most that one pod may ask for, of what it holds at a time. What is asked without a size counts as the most that the pod
/// may get by its name, as far as `at_most` knows it.
fn check_pod(
    policy: &Policy,
    document: &RequestDocument,
    at_most: impl Fn(ResourceName) -> Option<SizeGb>,
) -> Result<(), Denied> {
    let (name, cap, holdings) = (policy.name().to_owned(), policy.spec().max_per_pod, document.holdings());
    let mut without_size = BTreeMap::new();
    let (mut slices, mut memory) = (0_u32, 0_u32);
    for holding in holdings.iter() {
        let mut size = holding.size_gb;
        if size == SizeGb::ANY
            && let Some(most) = at_most(holding.resource)
        {
            without_size.insert(holding.resource, most);
            size = most;
        }
        slices = slices.saturating_add(holding.count);
        memory = memory.saturating_add(holding.count.saturating_mul(size.0));
    }
    match (cap.slices, cap.memory_gb) {
        (Some(max), _) if slices > max => Err(Denied::PodSlices { slices, max, policy: name }),
        (_, Some(max)) if memory > max => {
            let counted = without_size
                .iter()
                .map(|(name, size)| format!(", where {name} counts as {size}, the most that it may be"));
            Err(Denied::PodMemory { memory, counted: counted.collect(), max, policy: name })
        }
        _ => Ok(()),
    }
}

/// The choice for one pod, container by container.
struct Choosing<'c> {
    policy: &'c Policy,
    supply: &'c Supply,
    ask: &'c PodAsk,
    class: IsolationClass,
    kinds: &'c [Kind],
    made: Made,
}

#[derive(Default)]
struct Made {
    containers: Vec<ContainerRequest>,
    passed: Vec<PassedOver>,
    waits: Vec<PassedOver>,
    /// Whether there is no room now for some of it.
    short: bool,
    warnings: Vec<Warning>,
}

/// A name, and whether some GPU of the cluster serves it.
#[derive(Debug, Clone, Copy)]
struct Named {
    size: SizeGb,
    resource: ResourceName,
    served: bool,
}

impl Choosing<'_> {
    fn container(&mut self, container: &ContainerAsk) -> Result<(), Denied> {
        check_count(self.policy, &container.name, container.count)?;
        let Named { size, resource, served } = match container.want {
            Want::Size(size) => self.by_size(container, size)?,
            _ => self.by_name(container)?,
        };
        if !self.kinds.contains(&resource.kind()) || strongest_class(resource) < self.class {
            let (policy, kinds) = (self.policy.name().to_owned(), join(self.kinds));
            let container = container.name.clone();
            return Err(Denied::Kind { container, resource, class: self.class, policy, kinds });
        }
        if resource.kind() == Kind::TimeSlicing && container.compute.is_some() {
            return Err(self.no_compute(container));
        }
        self.warn(container, size, resource, served);
        self.made.containers.push(ContainerRequest {
            name: container.name.clone(),
            role: container.role,
            size_gb: size,
            profile: match container.want {
                Want::Profile(profile) => Some(profile),
                _ => None,
            },
            count: container.count,
            resource,
            memory: container.memory,
            compute: container.compute.filter(|_| resource != ResourceName::Whole),
        });
        Ok(())
    }

    /// The first kind that has room; else the first that some node can ever serve; else the first that some GPU can, which is
    /// too few for what is wanted; else the first that is conceivable.
    fn by_size(&mut self, container: &ContainerAsk, asked: SizeGb) -> Result<Named, Denied> {
        check_size(self.policy, &container.name, asked)?;
        let size = self.stepped(&container.name, asked);
        let need = Need { size, memory: container.memory, compute: container.compute, gpus: &self.ask.gpus };
        let mut passed = Vec::new();
        let (mut first, mut too_small): (Option<(usize, ResourceName)>, _) = (None, None);
        for kind in self.kinds {
            let pass = |reason| PassedOver { container: container.name.clone(), kind: *kind, reason };
            let names = self.ways(*kind, &need, container.count);
            let ways: Vec<Way> =
                names.into_iter().map(|name| self.way(container, name, &need.asked())).collect();
            if let Some(way) = ways.iter().find(|way| way.is_enough(Room::left)) {
                self.fall_back(way.resource, passed);
                return Ok(Named { size, resource: way.resource, served: true });
            }
            let large = ways.iter().find(|way| way.is_ever_enough(self.supply, &need.asked(), need.gpus));
            let Some(way) = large.or(ways.first()) else {
                passed.push(pass(Reason::NotServed));
                continue;
            };
            let waits = if large.is_some() { &mut first } else { &mut too_small };
            waits.get_or_insert((passed.len(), way.resource));
            passed.push(pass(way.full()));
        }
        if let Some((before, resource)) = first.or(too_small) {
            let waits = passed.get(before).cloned();
            passed.truncate(before);
            self.fall_back(resource, passed);
            self.made.warnings.extend(waits.clone().map(Warning::Waits));
            self.made.waits.extend(waits);
            self.made.short = true;
            return Ok(Named { size, resource, served: true });
        }
        self.made.short = true;
        self.want_one_replica(container, &need)?;
        let position = self.kinds.iter().position(|kind| conceivable(*kind, &need).is_some());
        let resource = position.and_then(|at| conceivable(*self.kinds.get(at)?, &need));
        let resource = resource.ok_or_else(|| self.no_slice(container, &need))?;
        passed.truncate(position.unwrap_or(0));
        self.made.passed.extend(passed);
        Ok(Named { size, resource, served: false })
    }

    /// The names by which a kind serves the need: what managed nodes are cut for, then what static nodes have, the smallest
    /// first.
    fn ways(&self, kind: Kind, need: &Need, count: u32) -> Vec<ResourceName> {
        let mut ways: Vec<_> = served(self.supply, kind, need).into_iter().collect();
        let fixed = self.supply.fixed(kind, &need.asked(), count, need.gpus);
        ways.extend(fixed.into_iter().filter(|name| !ways.contains(name)).collect::<Vec<_>>());
        ways
    }

    /// What there is of a name for a container, after those that were chosen for before it.
    fn way(&self, container: &ContainerAsk, resource: ResourceName, asked: &Asked) -> Way {
        let claim = Claim { role: container.role, resource, count: container.count };
        Way::of(self.supply, resource, asked, &self.ask.gpus, needed(&self.made.containers, claim))
    }

    /// `asked`, or the next larger step of the policy's, within the largest that it allows.
    fn stepped(&mut self, container: &str, asked: SizeGb) -> SizeGb {
        let sizes = self.policy.spec().sizes;
        let Some(step) = sizes.step_gb.filter(|step| step.0 > 0) else { return asked };
        let most = sizes.max_gb.unwrap_or(LARGEST_SIZE).min(LARGEST_SIZE);
        let size = SizeGb(asked.0.div_ceil(step.0).saturating_mul(step.0)).min(most).max(asked);
        if size > asked {
            self.made.warnings.push(Warning::Stepped(container.to_owned(), asked, size, step));
        }
        size
    }

    /// Records the kinds that were passed over for `resource`, and tells of them.
    fn fall_back(&mut self, resource: ResourceName, passed: Vec<PassedOver>) {
        let told = passed.iter().map(|passed| Warning::FellBack(passed.clone(), resource));
        self.made.warnings.extend(told);
        self.made.passed.extend(passed);
    }

    fn warn(&mut self, container: &ContainerAsk, size: SizeGb, resource: ResourceName, served: bool) {
        let warnings = &mut self.made.warnings;
        let name = container.name.clone();
        if !served && !self.supply.is_empty() {
            warnings.push(Warning::NoSupply(name.clone(), resource, size, self.class));
        }
        if let ResourceName::Mig(profile) = resource {
            let memory = self.supply.memory_of(profile, &self.ask.gpus);
            warnings.extend(less(memory, container, size, resource));
        } else if resource.is_plugins() && size != SizeGb::ANY {
            let asked = Asked { size, memory: container.memory, compute: container.compute };
            let offer = self.supply.fixed_least(resource, &asked, &self.ask.gpus);
            let memory = offer.and_then(|offer| offer.memory);
            let given = offer.and_then(|offer| offer.size).filter(|given| *given > size);
            warnings.extend(less(memory, container, size, resource));
            warnings.extend(given.map(|given| Warning::RoundedUp(name, size, given)));
        } else {
            let more = resource.size().filter(|given| *given > size);
            warnings.extend(more.map(|given| Warning::RoundedUp(name, size, given)));
        }
    }

    /// Why no kind of the class can be thought of that serves the need.
    fn no_slice(&self, container: &ContainerAsk, need: &Need) -> Denied {
        let without = Need { compute: None, ..*need };
        if self.kinds.iter().any(|kind| conceivable(*kind, &without).is_some()) {
            return self.no_compute(container);
        }
        let (name, kinds) = (container.name.clone(), join(self.kinds));
        Denied::Size { container: name, size: need.size, kinds, most: largest(self.kinds) }
    }

    fn no_compute(&self, container: &ContainerAsk) -> Denied {
        let (name, kinds) = (container.name.clone(), join(self.kinds));
        let percent = container.compute.map_or(0, crate::units::ComputePercent::get);
        Denied::Compute { container: name, percent, class: self.class, kinds }
    }
}

/// That a slice of this memory is less than the size says, where the memory itself was not asked for.
fn less(
    memory: Option<MemoryMib>,
    container: &ContainerAsk,
    size: SizeGb,
    resource: ResourceName,
) -> Option<Warning> {
    let memory = memory.filter(|memory| container.memory.is_none() && *memory < size.share_memory())?;
    Some(Warning::LessThanNominal(container.name.clone(), size, resource, memory))
}

#[cfg(test)]
mod static_tests;
#[cfg(test)]
mod tests;
