//! Chooses the resource name of each container's slices, from the request, the policy and the cluster's GPUs.

mod by_name;
mod candidates;
mod class;
mod denied;
mod distinct;
mod level;
mod names;
mod warning;

pub(super) use candidates::may_serve;
pub use denied::Denied;
pub use warning::Warning;

use super::{Policy, Supply};
use crate::contract::{Chosen, ContainerRequest, RequestDocument};
use crate::kind::{IsolationClass, Kind};
use crate::packing::Asked;
use crate::request::{ContainerAsk, GpuSelection, PodAsk, Want};
use crate::resource::ResourceName;
use crate::units::{ComputePercent, LARGEST_SIZE, MemoryMib, SizeGb};
use names::{Need, conceivable, largest, strongest_class};
use std::collections::BTreeMap;

/// The answer to an accepted request: the document that the webhook writes, and its warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The request document that the webhook writes into the pod's annotation.
    pub document: RequestDocument,
    /// The warnings to the user about the accepted request.
    pub warnings: Vec<Warning>,
}

/// Chooses how the cluster serves `ask`, or returns why the policy refuses it. The choice does not depend on the
/// present use of GPUs, because that changes until the pod is scheduled.
pub fn choose(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Result<Choice, Denied> {
    let plain = on_one_sort_of_node(policy, supply, ask).map(|(choice, _)| choice);
    let levelled = || -> Option<Choice> {
        let (levelled, raised) = level::levelled(ask)?;
        let (mut choice, _) = on_one_sort_of_node(policy, supply, &levelled).ok()?;
        choice.warnings.extend(raised);
        // Several sizes may share one name, so levelling may save nothing; then the pod keeps the sizes that it asked
        // for.
        let is_better = |plain: &Choice| level::is_less(&choice.document, &plain.document);
        plain.as_ref().map_or(true, is_better).then_some(choice)
    };
    let mut choice = levelled().map_or(plain, Ok)?;
    let containers = &choice.document.containers;
    let fixed = containers.iter().any(|container| container.resource.is_plugins());
    choice.document.static_nodes = fixed || supply.may_serve_statically(&choice.document);
    Ok(choice)
}

/// Chooses by the managed nodes, or by a group of equal static nodes if these serve the whole pod and the managed ones
/// do not.
///
/// All of a pod's slices are on one node, and a node is either static or managed. So the names of a pod with several
/// containers must not mix the two.
fn on_one_sort_of_node(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Result<(Choice, bool), Denied> {
    if ask.containers.len() <= 1 || !supply.has_static() {
        return choose_on(policy, supply, ask);
    }
    let managed = choose_on(policy, &supply.without_static(), ask);
    if matches!(managed, Ok((_, true))) {
        return managed;
    }
    let groups = supply.static_groups();
    let fixed = groups.iter().filter_map(|group| Some((group, choose_on(policy, group, ask).ok()?)));
    let fixed = fixed.filter(|(group, (choice, _))| group.serves_statically(&choice.document));
    // If no node has enough devices now, the pod gets a name anyway, because unhealthy devices may recover.
    let fixed = fixed.min_by_key(|(group, (choice, _))| !group.holds_statically(&choice.document));
    fixed.map_or(managed, |(_, found)| Ok(found))
}

/// Chooses container by container, without regard to which nodes serve each. The flag is true if some GPU serves every
/// container.
fn choose_on(policy: &Policy, supply: &Supply, ask: &PodAsk) -> Result<(Choice, bool), Denied> {
    let class = class::class(policy, supply, ask);
    let kinds = kinds(policy, class)?;
    let beyond = || Denied::Models {
        asked: join(&ask.gpus.models),
        not: join(&ask.gpus.not_models),
        policy: policy.name().to_owned(),
        allowed: join(&policy.spec().models),
    };
    let mut gpus = policy.gpus(&ask.gpus).ok_or_else(beyond)?;
    let made = loop {
        let mut choosing =
            Choosing { policy, supply, class, kinds, gpus: gpus.clone(), made: Made::default() };
        for container in &ask.containers {
            choosing.container(container)?;
        }
        // A later container's kind may exclude models that an earlier container was chosen for. So the choice is
        // repeated with the remaining models until these no longer change. It ends, because each round leaves fewer
        // models.
        let is_judged = choosing.gpus == gpus;
        gpus = choosing.gpus;
        if is_judged {
            break choosing.made;
        }
    };
    let Made { containers, is_unserved, mut warnings } = made;
    let beyond = policy.models_beyond(&ask.gpus);
    if !beyond.is_empty() {
        warnings.push(Warning::ModelsBeyond(join(&beyond), policy.name().to_owned()));
    }
    warnings.extend(ask.ignored.iter().cloned().map(Warning::Ignored));
    let is_open = containers.iter().any(|container| container.resource.is_neutral());
    let kinds_by_model = if is_open { policy.spec().kinds_by_model.clone() } else { BTreeMap::new() };
    let chosen = Chosen {
        policy: policy.name().to_owned(),
        dialect: ask.dialect.map(|dialect| dialect.to_string()),
        named: named(ask),
    };
    let document = RequestDocument {
        gpus,
        never_evicts: !policy.spec().preemption.moves_others,
        kinds_by_model,
        chosen: Some(chosen),
        ..RequestDocument::for_containers(class, containers)
    };
    check_pod(policy, &document, |name| supply.at_most(name, &document.gpus))?;
    Ok((Choice { document, warnings }, !is_unserved))
}

/// The containers whose request names a kind of slice rather than a size.
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

/// Compares the slices that the pod holds at a time with `maxPerPod`. A name without a size counts as the largest slice
/// that the pod may get by it, as far as `at_most` has one.
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

struct Choosing<'c> {
    policy: &'c Policy,
    supply: &'c Supply,
    class: IsolationClass,
    kinds: &'c [Kind],
    /// The GPUs that remain after the pod's selection, the policy and the kinds of the containers chosen so far.
    gpus: GpuSelection,
    made: Made,
}

#[derive(Default)]
struct Made {
    containers: Vec<ContainerRequest>,
    /// Whether no GPU serves one of the containers.
    is_unserved: bool,
    warnings: Vec<Warning>,
}

/// A resource name for one container, and the GPUs that may serve it.
#[derive(Debug, Clone)]
struct Named {
    size: SizeGb,
    resource: ResourceName,
    /// The kinds that may serve a neutral name; empty for a concrete name.
    kinds: Vec<Kind>,
    served: bool,
    gpus: GpuSelection,
}

impl Choosing<'_> {
    fn container(&mut self, container: &ContainerAsk) -> Result<(), Denied> {
        check_count(self.policy, &container.name, container.count)?;
        let named = match container.want {
            Want::Size(size) => self.by_size(container, size)?,
            _ => self.by_name(container)?,
        };
        self.check_kind(container, named.resource)?;
        let named = self.unmapped(container, named)?;
        self.gpus.clone_from(&named.gpus);
        self.made.is_unserved |= !named.served;
        self.warn(container, &named);
        let Named { size, resource, kinds, .. } = named;
        self.made.containers.push(ContainerRequest {
            name: container.name.clone(),
            role: container.role,
            profile: match container.want {
                Want::Profile(profile) => Some(profile),
                _ => None,
            },
            count: container.count,
            kinds,
            memory: container.memory,
            // A whole GPU has all of its compute, so no share is recorded.
            compute: container.compute.filter(|_| resource != ResourceName::Whole),
            distinct_gpus: container.distinct_gpus,
            ..ContainerRequest::for_slice(resource, size)
        });
        Ok(())
    }

    /// Checks that a concrete name's kind meets the pod's class and compute. Neutral names need no check, because their
    /// kinds were chosen by the same rules.
    fn check_kind(&self, container: &ContainerAsk, resource: ResourceName) -> Result<(), Denied> {
        let Some(kind) = resource.kind() else { return Ok(()) };
        if !self.kinds.contains(&kind) || strongest_class(resource) < self.class {
            let (policy, kinds) = (self.policy.name().to_owned(), join(self.kinds));
            let container = container.name.clone();
            return Err(Denied::Kind { container, resource, class: self.class, policy, kinds });
        }
        let is_by_turns = kind == Kind::TimeSlicing || matches!(resource, ResourceName::MigReplica(_));
        match container.compute {
            Some(compute) if is_by_turns => Err(self.no_compute(container, compute)),
            _ => Ok(()),
        }
    }

    /// `asked`, rounded up to the policy's next step but not past its largest size.
    fn stepped(&mut self, container: &str, asked: SizeGb) -> SizeGb {
        let sizes = self.policy.spec().sizes;
        let Some(step) = sizes.step_gb else { return asked };
        let Some(size) = asked.0.checked_next_multiple_of(step.0) else { return asked };
        let most = sizes.max_gb.unwrap_or(LARGEST_SIZE).min(LARGEST_SIZE);
        let size = SizeGb(size).min(most).max(asked);
        if size > asked {
            self.made.warnings.push(Warning::Stepped(container.to_owned(), asked, size, step));
        }
        size
    }

    fn warn(&mut self, container: &ContainerAsk, named: &Named) {
        let Named { size, resource, .. } = *named;
        let (name, asked) = (|| container.name.clone(), names::asked(container, size));
        let may_be_mig = resource.kind() == Some(Kind::Mig) || named.kinds.contains(&Kind::Mig);
        let distinct = self.distinct_warning(container);
        let warnings = &mut self.made.warnings;
        // While kerf has seen no GPU at all, the warning would say nothing about the pod.
        if !named.served && !self.supply.is_empty() {
            warnings.push(Warning::NoSupply(name(), resource, size, self.class));
            warnings.extend(distinct);
        }
        if may_be_mig && container.count > 1 {
            warnings.push(Warning::SeveralInstances(name(), container.count, resource));
        }
        let profile = match (resource, container.want) {
            (ResourceName::Mig(profile), _) | (_, Want::Profile(profile)) => Some(profile),
            _ if named.kinds.contains(&Kind::Mig) => {
                self.supply.fitting_profiles(&asked, &self.gpus).first().copied()
            }
            _ => None,
        };
        if let Some(profile) = profile.filter(|_| !resource.is_plugins()) {
            let memory = self.supply.memory_of(profile, &self.gpus);
            warnings.extend(less(memory, container, size, ResourceName::Mig(profile)));
        }
        let given = if resource.is_plugins() && size != SizeGb::ANY {
            let offer = self.supply.fixed_least(resource, &asked, &self.gpus);
            let memory = offer.and_then(|offer| offer.memory);
            warnings.extend(less(memory, container, size, resource));
            offer.and_then(|offer| offer.size)
        } else {
            resource.size().filter(|_| resource.kind() != Some(Kind::Mig))
        };
        let given = given.filter(|given| *given > size);
        warnings.extend(given.map(|given| Warning::RoundedUp(name(), size, given)));
    }

    /// The reason why no kind of the class could ever serve the need.
    fn no_slice(&self, kinds: &[Kind], container: &ContainerAsk, need: &Need) -> Denied {
        let allowed = |kind: &Kind| Some((*kind, self.policy.gpus_for(*kind, need.gpus)?));
        let allowed: Vec<(Kind, GpuSelection)> = kinds.iter().filter_map(allowed).collect();
        let without = |gpus| Need { asked: Asked { compute: None, ..need.asked }, gpus };
        if let Some(compute) = need.asked.compute
            && allowed.iter().any(|(kind, gpus)| !conceivable(*kind, &without(gpus)).is_empty())
        {
            return self.no_compute(container, compute);
        }
        let (name, kinds) = (container.name.clone(), join(kinds));
        match allowed.iter().filter_map(|(kind, gpus)| largest(*kind, gpus)).max() {
            Some(most) => Denied::Size { container: name, size: need.asked.size, kinds, most },
            None => self.no_model(container, &kinds),
        }
    }

    /// The refusal if no model that the pod may have can serve the container.
    fn no_model(&self, container: &ContainerAsk, what: &str) -> Denied {
        let (container, policy) = (container.name.clone(), self.policy.name().to_owned());
        let models = if self.gpus.models.is_empty() { "any".to_owned() } else { join(&self.gpus.models) };
        Denied::NoModel { container, what: what.to_owned(), policy, models }
    }

    fn no_compute(&self, container: &ContainerAsk, compute: ComputePercent) -> Denied {
        let (name, kinds) = (container.name.clone(), join(self.kinds));
        Denied::Compute { container: name, percent: compute.get(), class: self.class, kinds }
    }
}

/// Warns that a slice has less memory than its size says. A request by real memory needs no warning, because it gets at
/// least that.
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
mod distinct_tests;
#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod static_tests;
#[cfg(test)]
mod tests;
