//! From an ask to a request document: the first kind in the policy's order that the cluster has room for.

mod by_name;
mod class;
mod denied;
mod distinct;
mod level;
mod names;
mod together;
mod warning;
mod way;

pub use denied::Denied;
pub use warning::Warning;
pub(super) use way::{Way, needed};

use super::{Asked, Policy, Room, Supply};
use crate::contract::{
    Chosen, ContainerRequest, PassedOver, REQUEST_VERSION, Reason, RequestDocument, RootProcesses,
};
use crate::kind::{IsolationClass, Kind};
use crate::request::{Claim, ContainerAsk, GpuSelection, PodAsk, Want};
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
        // What a later container's kind leaves of the GPUs is all that those before it may have: they are chosen for by that. Each
        // round leaves fewer models.
        let is_judged = ask.containers.len() <= 1 || choosing.gpus == gpus;
        gpus = choosing.gpus;
        if is_judged {
            break choosing.made;
        }
    };
    let Made { containers, passed, waits, short, mut warnings } = made;
    let beyond = policy.models_beyond(&ask.gpus);
    if !beyond.is_empty() {
        warnings.push(Warning::ModelsBeyond(join(&beyond), policy.name().to_owned()));
    }
    warnings.extend(ask.ignored.iter().cloned().map(Warning::Ignored));
    let document = RequestDocument {
        version: REQUEST_VERSION,
        isolation: class,
        containers,
        gpus,
        moves_nobody: !policy.spec().preemption.moves_others,
        static_nodes: false,
        nodes: BTreeMap::new(),
        asked: None,
        kinds_by_model: BTreeMap::new(),
        user_namespace: false,
        root_processes: RootProcesses::default(),
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
    check_pod(policy, &document, |name| supply.at_most(name, &document.gpus))?;
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

/// Whether a container is given what `way` has, when its turn comes.
///
/// Pending pods take their part of the room. But for the name that the pod carries its own first choice counts among them, so all of
/// the room counts. A forged name gains nothing: the way has room, and none that the policy prefers is enough.
fn is_given(container: &ContainerAsk, way: &Way) -> bool {
    let is_carried = container.carried == Some(way.resource);
    way.is_enough(|room| if is_carried { room.room } else { room.left() })
}

/// The choice for one pod, container by container.
struct Choosing<'c> {
    policy: &'c Policy,
    supply: &'c Supply,
    class: IsolationClass,
    kinds: &'c [Kind],
    /// The GPUs that are left to the pod by what it names, the policy, and the kinds of the containers that were chosen for.
    gpus: GpuSelection,
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

/// A name, whether some GPU of the cluster serves it, and the GPUs that it may be of.
#[derive(Debug, Clone)]
struct Named {
    size: SizeGb,
    resource: ResourceName,
    served: bool,
    gpus: GpuSelection,
}

impl Choosing<'_> {
    fn container(&mut self, container: &ContainerAsk) -> Result<(), Denied> {
        check_count(self.policy, &container.name, container.count)?;
        let Named { size, resource, served, gpus } = match container.want {
            Want::Size(size) => self.by_size(container, size)?,
            _ => self.by_name(container)?,
        };
        self.gpus = gpus;
        if !resource.kind().is_some_and(|kind| self.kinds.contains(&kind))
            || strongest_class(resource) < self.class
        {
            let (policy, kinds) = (self.policy.name().to_owned(), join(self.kinds));
            let container = container.name.clone();
            return Err(Denied::Kind { container, resource, class: self.class, policy, kinds });
        }
        let is_by_turns =
            resource.kind() == Some(Kind::TimeSlicing) || matches!(resource, ResourceName::MigReplica(_));
        if is_by_turns && container.compute.is_some() {
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
            kinds: Vec::new(),
            memory: container.memory,
            compute: container.compute.filter(|_| resource != ResourceName::Whole),
            distinct_gpus: container.distinct_gpus,
        });
        Ok(())
    }

    /// The first kind that has room; else the first that some node can ever serve; else the first that some GPU can, which is
    /// too few for what is wanted; else the first that is conceivable.
    fn by_size(&mut self, container: &ContainerAsk, asked: SizeGb) -> Result<Named, Denied> {
        check_size(self.policy, &container.name, asked)?;
        let size = self.stepped(&container.name, asked);
        let kinds = self.kinds_for(container)?;
        let allowed: Vec<(Kind, GpuSelection)> =
            kinds.iter().filter_map(|kind| Some((*kind, self.policy.gpus_for(*kind, &self.gpus)?))).collect();
        if allowed.is_empty() {
            return Err(self.no_model(container, &join(&kinds)));
        }
        let need = |gpus| Need { asked: names::asked(container, size), gpus };
        let mut passed = Vec::new();
        let mut first: Option<(usize, Named)> = None;
        let mut too_small: Option<(usize, Named)> = None;
        for kind in &*kinds {
            let pass = |reason| PassedOver { container: container.name.clone(), kind: *kind, reason };
            let Some((_, gpus)) = allowed.iter().find(|(allowed, _)| allowed == kind) else {
                passed.push(pass(Reason::NotServed));
                continue;
            };
            let need = need(gpus);
            let named = |way: &Way| Named { size, resource: way.resource, served: true, gpus: gpus.clone() };
            let resources = self.ways(*kind, &need, container.count);
            let ways: Vec<Way> =
                resources.into_iter().map(|name| self.way(container, name, &need.asked, gpus)).collect();
            if let Some(way) = ways.iter().find(|way| is_given(container, way)) {
                self.made.short |= !way.is_enough(Room::left);
                self.fall_back(way.resource, passed);
                return Ok(named(way));
            }
            let large = ways.iter().find(|way| way.is_ever_enough(self.supply, &need.asked, gpus));
            let Some(way) = large.or(ways.first()) else {
                passed.push(pass(Reason::NotServed));
                continue;
            };
            let waits = if large.is_some() { &mut first } else { &mut too_small };
            waits.get_or_insert_with(|| (passed.len(), named(way)));
            passed.push(pass(way.full()));
        }
        let is_ever_enough = first.is_some();
        if let Some((before, named)) = first.or(too_small) {
            let waits = passed.get(before).cloned();
            passed.truncate(before);
            self.fall_back(named.resource, passed);
            self.made.warnings.extend(waits.clone().map(Warning::Waits));
            self.made.waits.extend(waits);
            self.made.warnings.extend(self.distinct_warning(container).filter(|_| !is_ever_enough));
            self.made.short = true;
            return Ok(named);
        }
        self.made.short = true;
        self.want_one_replica(container, &allowed, &need(&self.gpus).asked)?;
        let found = allowed.iter().find_map(|(kind, gpus)| {
            let resource = conceivable(*kind, &need(gpus))?;
            Some((*kind, Named { size, resource, served: false, gpus: gpus.clone() }))
        });
        let (kind, named) = found.ok_or_else(|| self.no_slice(&kinds, container, &need(&self.gpus)))?;
        passed.truncate(kinds.iter().position(|tried| *tried == kind).unwrap_or(0));
        self.made.passed.extend(passed);
        Ok(named)
    }

    /// The names by which a kind serves the need: what managed nodes are cut for, then what static nodes have, the smallest
    /// first.
    fn ways(&self, kind: Kind, need: &Need, count: u32) -> Vec<ResourceName> {
        let mut ways: Vec<_> = served(self.supply, kind, need).into_iter().collect();
        let fixed = self.supply.fixed(kind, &need.asked, count, need.gpus);
        ways.extend(fixed.into_iter().filter(|name| !ways.contains(name)).collect::<Vec<_>>());
        ways
    }

    /// What there is of a name for a container, after those that were chosen for before it.
    fn way(
        &self,
        container: &ContainerAsk,
        resource: ResourceName,
        asked: &Asked,
        gpus: &GpuSelection,
    ) -> Way {
        let claim = Claim { role: container.role, resource, count: container.count };
        let needed = needed(&self.made.containers, claim, container.distinct_gpus);
        Way::of(self.supply, resource, asked, gpus, needed)
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
        let distinct = self.distinct_warning(container);
        let warnings = &mut self.made.warnings;
        let name = container.name.clone();
        if !served && !self.supply.is_empty() {
            warnings.push(Warning::NoSupply(name.clone(), resource, size, self.class));
            warnings.extend(distinct);
        }
        if resource.kind() == Some(Kind::Mig) && container.count > 1 {
            warnings.push(Warning::SeveralInstances(name.clone(), container.count, resource));
        }
        if let ResourceName::Mig(profile) = resource {
            let memory = self.supply.memory_of(profile, &self.gpus);
            warnings.extend(less(memory, container, size, resource));
        } else if resource.is_plugins() && size != SizeGb::ANY {
            let asked = names::asked(container, size);
            let offer = self.supply.fixed_least(resource, &asked, &self.gpus);
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
    fn no_slice(&self, kinds: &[Kind], container: &ContainerAsk, need: &Need) -> Denied {
        let allowed = |kind: &Kind| Some((*kind, self.policy.gpus_for(*kind, need.gpus)?));
        let allowed: Vec<(Kind, GpuSelection)> = kinds.iter().filter_map(allowed).collect();
        let without = |gpus| Need { asked: Asked { compute: None, ..need.asked }, gpus };
        if allowed.iter().any(|(kind, gpus)| conceivable(*kind, &without(gpus)).is_some()) {
            return self.no_compute(container);
        }
        let (name, kinds) = (container.name.clone(), join(kinds));
        match allowed.iter().filter_map(|(kind, gpus)| largest(*kind, gpus)).max() {
            Some(most) => Denied::Size { container: name, size: need.asked.size, kinds, most },
            None => self.no_model(container, &kinds),
        }
    }

    /// That no model which the pod may have can serve what it asks.
    fn no_model(&self, container: &ContainerAsk, what: &str) -> Denied {
        let (container, policy) = (container.name.clone(), self.policy.name().to_owned());
        let models = if self.gpus.models.is_empty() { "any".to_owned() } else { join(&self.gpus.models) };
        Denied::NoModel { container, what: what.to_owned(), policy, models }
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
mod distinct_tests;
#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod static_tests;
#[cfg(test)]
mod tests;
