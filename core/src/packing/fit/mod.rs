//! Decides whether a node has room for a whole pod, and the best places on it. A pod gets all its slices or none.

use super::exacting::Exacting;
use super::plan::{Rank, own_name, plans};
use super::{Cost, Fleet, Refusal, Spread, instance, layout, share};
use crate::contract::{ContainerRequest, RequestDocument, Shape};
use crate::inventory::{GpuInventory, NodeInventory, Occupancy, PlacedSlice};
use crate::kind::Kind;
use crate::names::{GpuUuid, SliceId};
use crate::request::GpuSelection;
use crate::resource::ResourceName;
use std::borrow::Cow;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

/// The places of all slices of a pod on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// One entry for each slice, in the order of the request.
    pub slices: Vec<Placed>,
    /// The rank of the plan that they follow: the first plan that fits the node.
    pub rank: Rank,
    /// The sum of the slices' costs.
    pub cost: Cost,
}

/// The place of one slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The name of the container that gets it.
    pub container: String,
    /// The resource name in the container's request.
    pub resource: ResourceName,
    /// Whether no other pod's slice of this name may be offered to the kubelet together with this one.
    pub alone: bool,
    /// The UUID of the GPU.
    pub gpu: GpuUuid,
    /// Kind, size and position of the slice.
    pub shape: Shape,
    /// Whether it exists already or must be cut.
    pub source: Source,
}

/// The origin of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An idle slice is used again.
    Idle(SliceId),
    /// A new slice is cut after these idle slices are destroyed.
    Cut(Vec<SliceId>),
}

/// Finds the best places for `request` on `node`, a node of `fleet`. It follows the first of the request's plans that
/// fits the node.
pub fn fit(node: &NodeInventory, request: &RequestDocument, fleet: &Fleet) -> Result<Fit, Refusal> {
    if request.containers.iter().all(|container| !container.resource.is_neutral()) {
        return fit_first(node, request, &[Cow::Borrowed(request)], fleet);
    }
    fit_first(node, request, &by_plan(request), fleet)
}

/// The request under each of its plans.
fn by_plan(request: &RequestDocument) -> Vec<Cow<'_, RequestDocument>> {
    plans(request).iter().map(|plan| request.planned(plan)).collect()
}

/// Like [`fit`], for a request whose plans are already computed.
///
/// The node counts as full if it is full for any plan, because pods may end. Otherwise the first plan's refusal is
/// returned. Plans with a kind that no GPU of the node serves are skipped, so that they do not hide the refusals of the
/// others.
fn fit_first(
    node: &NodeInventory,
    request: &RequestDocument,
    by_plan: &[Cow<'_, RequestDocument>],
    fleet: &Fleet,
) -> Result<Fit, Refusal> {
    may_run(node, request)?;
    let has = |kind| node.gpus.iter().any(|gpu| gpu.kinds.contains(&kind));
    let has_kinds =
        |planned: &RequestDocument| planned.containers.iter().all(|c| c.only_kind().is_some_and(has));
    let mut refused = Vec::new();
    for (place, planned) in by_plan.iter().enumerate().filter(|(_, planned)| has_kinds(planned)) {
        match place_all(node, planned, fleet) {
            Ok(fit) => return Ok(Fit { rank: Rank::from_position(place), ..fit }),
            Err(refusal) => refused.push((planned, refusal)),
        }
    }
    let mut first = Refusal::NeverFits;
    for (planned, refusal) in refused {
        match explain(node, planned, refusal, fleet) {
            Refusal::NoRoom => return Err(Refusal::NoRoom),
            other if first == Refusal::NeverFits => first = other,
            _ => {}
        }
    }
    Err(first)
}

/// Whether the node can run the pod at all, regardless of its GPUs.
fn may_run(node: &NodeInventory, request: &RequestDocument) -> Result<(), Refusal> {
    let names = request.containers.iter().map(|container| container.resource);
    let neutral = names.filter(|name| name.is_neutral()).filter_map(ResourceName::size).max();
    // `None` is less than any size, so an agent that reports no neutral names serves none.
    if neutral > node.neutral_up_to {
        return Err(Refusal::NameNotRegistered);
    }
    if request.user_namespace && node.user_namespaces == Some(false) {
        return Err(Refusal::NoUserNamespaces);
    }
    Ok(())
}

fn place_all(node: &NodeInventory, request: &RequestDocument, fleet: &Fleet) -> Result<Fit, Refusal> {
    let holdings = request.holdings();
    let spreads = spreads(request);
    let empty = || Placing {
        node: node.clone(),
        fleet,
        request,
        spreads: &spreads,
        together: BTreeMap::new(),
        spots: Vec::new(),
    };
    let in_order: Vec<usize> = (0..holdings.len()).collect();
    // The request's order comes first. A second pass places the largest slices first, and the search helps only where
    // slices must be spread.
    let placing = empty().place_each(&holdings, &in_order).or_else(|refusal| {
        let order = largest_first(&holdings);
        let found = if order == in_order { Err(refusal) } else { empty().place_each(&holdings, &order) };
        found.or_else(|refusal| empty().search(&holdings, &order).ok_or(refusal))
    })?;
    let cost = placing.cost();
    // Slices of whole GPUs need not be offered alone, because whole GPUs always are different GPUs.
    let whole = |name: ResourceName| holdings.iter().any(|h| h.resource == name && is_whole(h));
    let mut alone: BTreeSet<ResourceName> = spreads.keys().copied().filter(|name| !whole(*name)).collect();
    let Placing { node, mut spots, .. } = placing;
    let may_get_another = |spot: &&Spot| {
        let pod = Exacting { gpus: &request.gpus, holding: &holdings[spot.holding] };
        pod.may_get_another(&node, spot.gpu, spot.candidate.shape)
    };
    alone.extend(spots.iter().filter(may_get_another).map(|spot| holdings[spot.holding].resource));
    spots.sort_by_key(|spot| spot.holding);
    let slices = spots.into_iter().map(|Spot { holding, gpu, candidate, .. }| Placed {
        container: holdings[holding].name.clone(),
        resource: holdings[holding].resource,
        alone: alone.contains(&holdings[holding].resource),
        gpu: node.gpus[gpu].uuid.clone(),
        shape: candidate.shape,
        source: candidate.source,
    });
    Ok(Fit { slices: slices.collect(), rank: Rank::BEST, cost })
}

fn is_whole(holding: &ContainerRequest) -> bool {
    holding.only_kind() == Some(Kind::Whole)
}

/// The indexes of the holdings, the largest first. A small slice at its best place may block two larger ones after it,
/// whereas a large one leaves places for small ones.
fn largest_first(holdings: &[ContainerRequest]) -> Vec<usize> {
    let compute = |holding: &ContainerRequest| match holding.resource {
        ResourceName::Mig(profile) => profile.compute(),
        _ => 0,
    };
    let mut order: Vec<usize> = (0..holdings.len()).collect();
    order.sort_by_key(|number| Reverse((holdings[*number].size_gb, compute(&holdings[*number]))));
    order
}

/// The resource names whose slices must lie on one GPU or on different GPUs.
fn spreads(request: &RequestDocument) -> BTreeMap<ResourceName, Spread> {
    let spread = |holding: &ContainerRequest| {
        let containers = request.containers.iter().filter(|container| container.resource == holding.resource);
        let spread = Spread::for_slices(holding.only_kind(), containers.map(|c| (c.count, c.distinct_gpus)));
        (holding.resource, spread)
    };
    request.containers.iter().map(spread).filter(|(_, spread)| *spread != Spread::Any).collect()
}

/// Whether this GPU may serve a holding: the pod's GPU selection and the policy for the model decide.
fn may_have(
    request: &RequestDocument,
    gpus: &GpuSelection,
    holding: &ContainerRequest,
    gpu: &GpuInventory,
) -> bool {
    gpus.admits(&gpu.uuid, &gpu.model)
        && holding.only_kind().is_some_and(|kind| request.allows(kind, &gpu.model))
}

/// The limit of GPUs that are tried for a pod whose slices find no place in a simple order, because the number of
/// combinations grows with each slice.
const TRIES_LIMIT: u32 = 256;

/// A node while a pod's slices are placed on it.
#[derive(Clone)]
struct Placing<'f> {
    node: NodeInventory,
    fleet: &'f Fleet,
    request: &'f RequestDocument,
    spreads: &'f BTreeMap<ResourceName, Spread>,
    /// For names whose slices must be on different GPUs: the GPUs that were chosen for them.
    together: BTreeMap<ResourceName, Vec<usize>>,
    spots: Vec<Spot>,
}

/// The place of one slice, with the indexes of its holding and of its GPU.
#[derive(Clone)]
struct Spot {
    holding: usize,
    resource: ResourceName,
    gpu: usize,
    candidate: Candidate,
}

impl Placing<'_> {
    /// Places all holdings in this order. The slices of a name that belongs on one GPU are placed together with the
    /// first of them.
    fn place_each(mut self, holdings: &[ContainerRequest], order: &[usize]) -> Result<Self, Refusal> {
        let mut done = BTreeSet::new();
        for &number in order {
            let holding = &holdings[number];
            if self.spread(holding.resource) != Spread::OneGpu {
                self.choose_closest(holding, holdings);
                self.place(number, holding, None)?;
            } else if done.insert(holding.resource) {
                let members = holdings.iter().enumerate().filter(|(_, h)| h.resource == holding.resource);
                self = self.place_together(&members.collect::<Vec<_>>())?;
            }
        }
        Ok(self)
    }

    /// Chooses the GPUs for all slices of a holding's name together, if each must be on a different GPU: only then
    /// closeness can be compared. Cost goes first, and closeness decides among places of equal cost.
    fn choose_closest(&mut self, holding: &ContainerRequest, holdings: &[ContainerRequest]) {
        let name = holding.resource;
        let apart = is_whole(holding) || self.spread(name) == Spread::DistinctGpus;
        if !apart || !self.node.closeness.distinguishes_pairs() || self.together.contains_key(&name) {
            return;
        }
        let of_name = holdings.iter().filter(|other| other.resource == name);
        let count = of_name.fold(0, |sum: usize, other| sum.saturating_add(other.count as usize));
        let may = |_: usize, gpu: &GpuInventory| may_have(self.request, &self.request.gpus, holding, gpu);
        let places = places(&self.node, holding, self.fleet, may);
        self.together.insert(name, closest(&self.node, &places, count));
    }

    fn spread(&self, name: ResourceName) -> Spread {
        self.spreads.get(&name).copied().unwrap_or(Spread::Any)
    }

    fn cost(&self) -> Cost {
        self.spots.iter().fold(Cost::default(), |sum, spot| sum + spot.candidate.cost)
    }

    /// Places all slices of a holding, on the given GPU if there is one.
    fn place(
        &mut self,
        number: usize,
        holding: &ContainerRequest,
        only: Option<usize>,
    ) -> Result<(), Refusal> {
        for _ in 0..holding.count {
            self.place_one(number, holding, only)?;
        }
        Ok(())
    }

    /// Places one slice of a holding, on the given GPU if there is one.
    fn place_one(
        &mut self,
        number: usize,
        holding: &ContainerRequest,
        only: Option<usize>,
    ) -> Result<(), Refusal> {
        let (resource, spread) = (holding.resource, self.spread(holding.resource));
        let others = || self.spots.iter().filter(|spot| spot.resource == resource).map(|spot| spot.gpu);
        let may = |index: usize, gpu: &GpuInventory| {
            only.is_none_or(|only| only == index)
                && may_have(self.request, &self.request.gpus, holding, gpu)
                && spread.admits(index, others())
        };
        let together = self.together.get(&resource);
        let is_close = |index: &usize| together.is_none_or(|gpus| gpus.contains(index));
        let close = |index: usize, gpu: &GpuInventory| is_close(&index) && may(index, gpu);
        let found = best(&self.node, holding, self.fleet, close);
        // A slice of another name may have got one of the chosen GPUs meanwhile.
        let found = if together.is_some() {
            found.or_else(|_| best(&self.node, holding, self.fleet, may))
        } else {
            found
        };
        let (gpu, candidate) = found?;
        occupy(&mut self.node.gpus[gpu], &candidate);
        self.spots.push(Spot { holding: number, resource, gpu, candidate });
        Ok(())
    }

    /// Tries one GPU after the other for each slice, if some slices must be on different GPUs. Other slices of the pod
    /// may have taken the only place at their own best one, although all fit together.
    fn search(&self, holdings: &[ContainerRequest], order: &[usize]) -> Option<Self> {
        // With a single name, placing one slice after the other finds places if there are any.
        let is_one_name = holdings.windows(2).all(|pair| pair[0].resource == pair[1].resource);
        let is_spread = self.spreads.values().any(|spread| *spread == Spread::DistinctGpus);
        let count = holdings.iter().fold(0_u32, |sum, holding| sum.saturating_add(holding.count));
        if is_one_name || !is_spread || count > TRIES_LIMIT {
            return None;
        }
        let slices = |number: &usize| vec![*number; holdings[*number].count as usize];
        let slices: Vec<usize> = order.iter().flat_map(slices).collect();
        let mut tries = TRIES_LIMIT;
        self.search_on(holdings, &slices, &mut tries)
    }

    fn search_on(&self, holdings: &[ContainerRequest], slices: &[usize], tries: &mut u32) -> Option<Self> {
        let [number, others @ ..] = slices else { return Some(self.clone()) };
        let holding = &holdings[*number];
        // Only rising GPU indexes are tried, because the slices of one holding are interchangeable.
        let first = self.spots.last().filter(|spot| spot.holding == *number).map_or(0, |spot| spot.gpu);
        (first..self.node.gpus.len()).find_map(|gpu| {
            *tries = tries.checked_sub(1)?;
            let mut next = self.clone();
            next.place_one(*number, holding, Some(gpu)).ok()?;
            next.search_on(holdings, others, tries)
        })
    }

    /// Places the slices of several holdings on one GPU: the cheapest, and the first among equals.
    fn place_together(&self, members: &[(usize, &ContainerRequest)]) -> Result<Self, Refusal> {
        let on = |gpu: usize| {
            let mut tried = self.clone();
            let placed =
                members.iter().try_for_each(|(number, holding)| tried.place(*number, holding, Some(gpu)));
            placed.is_ok().then_some(tried)
        };
        (0..self.node.gpus.len()).filter_map(on).min_by_key(Self::cost).ok_or(Refusal::NoRoom)
    }
}

/// Distinguishes a full node from one that could not serve the request even if it were empty.
fn explain(node: &NodeInventory, request: &RequestDocument, refusal: Refusal, fleet: &Fleet) -> Refusal {
    let mut empty = node.clone();
    empty.gpus.iter_mut().for_each(|gpu| gpu.slices.clear());
    if place_all(&empty, request, fleet).is_ok() {
        return refusal;
    }
    let holdings = request.holdings();
    let one_each = |gpus: &GpuSelection| {
        holdings.iter().all(|holding| {
            let may = |_: usize, gpu: &GpuInventory| may_have(request, gpus, holding, gpu);
            best(&empty, holding, fleet, may).is_ok()
        })
    };
    // Each slice fits by itself, so only their number is too large.
    if one_each(&request.gpus) {
        let mut on_any = request.clone();
        on_any.containers.iter_mut().for_each(|container| container.distinct_gpus = false);
        let fits_on_any = on_any != *request && place_all(&empty, &on_any, fleet).is_ok();
        if fits_on_any { Refusal::TooFewGpus } else { Refusal::CountNeverFits }
    } else if !request.gpus.is_all() && one_each(&GpuSelection::default()) {
        Refusal::NotSelected
    } else {
        Refusal::NeverFits
    }
}

#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) shape: Shape,
    pub(super) source: Source,
    pub(super) cost: Cost,
}

impl Candidate {
    /// The cost that goes before closeness. For a whole GPU it leaves out the work of making it, which takes hardly any
    /// time.
    fn level(&self) -> Cost {
        match self.shape {
            Shape::Whole { .. } => Cost(self.cost.0 - share::work(&self.source).0),
            _ => self.cost,
        }
    }
}

/// The cheapest place on those GPUs of the node that may serve. Among equal costs it takes the GPU whose removal hurts
/// the closeness of the others least, then the first.
pub(super) fn best(
    node: &NodeInventory,
    request: &ContainerRequest,
    fleet: &Fleet,
    may: impl Fn(usize, &GpuInventory) -> bool,
) -> Result<(usize, Candidate), Refusal> {
    let places = places(node, request, fleet, may);
    let gpus = closest(node, &places, 1);
    places.into_iter().find(|(gpu, _)| gpus.contains(gpu)).ok_or(Refusal::NoRoom)
}

/// The cheapest place on each GPU that may serve, ordered by cost.
fn places(
    node: &NodeInventory,
    request: &ContainerRequest,
    fleet: &Fleet,
    may: impl Fn(usize, &GpuInventory) -> bool,
) -> Vec<(usize, Candidate)> {
    let Some(kind) = request.only_kind() else { return Vec::new() };
    let gpus = node.gpus.iter().enumerate();
    let gpus = gpus.filter(|(index, gpu)| gpu.kinds.contains(&kind) && may(*index, gpu));
    let places = gpus.filter_map(|(index, gpu)| {
        // A slice that was given back may only be used again as it is, because the kubelet may have given it to another
        // pod.
        let reused = gpu.reusing().filter_map(|(id, gpu)| {
            candidate(&gpu, request, fleet).filter(|place| place.source == Source::Idle(id.clone()))
        });
        let place = reused.chain(candidate(gpu, request, fleet)).min_by_key(|place| place.cost)?;
        Some((index, place))
    });
    let mut places: Vec<_> = places.collect();
    // The level comes first, because `closest` compares closeness among places of one level.
    places.sort_by_key(|(index, place)| (place.level(), place.cost, *index));
    places
}

/// The GPUs of the `count` cheapest of these places, which are sorted. Closeness decides among places of equal cost.
fn closest(node: &NodeInventory, places: &[(usize, Candidate)], count: usize) -> Vec<usize> {
    let Some((_, last)) = places.get(..count).and_then(<[_]>::last) else { return Vec::new() };
    let at_level = |side| {
        let places = places.iter().filter(move |(_, place)| place.level().cmp(&last.level()) == side);
        places.map(|(gpu, _)| *gpu).collect::<Vec<_>>()
    };
    let mut gpus = at_level(Ordering::Less);
    let more = node.closeness.closest(&gpus, &at_level(Ordering::Equal), count - gpus.len());
    gpus.extend(more);
    gpus
}

fn candidate(gpu: &GpuInventory, request: &ContainerRequest, fleet: &Fleet) -> Option<Candidate> {
    if let Some(layout) = &gpu.layout {
        return layout::candidate(gpu, layout, request);
    }
    let name = own_name(request)?;
    match name {
        ResourceName::Mig(_) | ResourceName::Neutral(_) => instance::candidate(gpu, request, fleet),
        ResourceName::Compute(profile) => instance::part(gpu, profile, request, fleet),
        ResourceName::MigReplica(profile) => instance::replica(gpu, profile, request, fleet),
        ResourceName::Whole => share::whole(gpu, request),
        ResourceName::Mps(_)
        | ResourceName::TimeSlicing(_)
        | ResourceName::Replica
        | ResourceName::MpsReplica => {
            let shape = share::shape(gpu, name, request)?;
            let suffices = request.memory.is_none_or(|memory| shape.size().share_memory() >= memory);
            if suffices { share::candidate(gpu, shape) } else { None }
        }
        ResourceName::Plugin(..) => None,
    }
}

pub(super) fn occupy(gpu: &mut GpuInventory, candidate: &Candidate) {
    let gone = |id: &SliceId| match &candidate.source {
        Source::Idle(used) => used == id,
        Source::Cut(destroyed) => destroyed.contains(id),
    };
    gpu.slices.retain(|s| match &s.occupancy {
        Occupancy::Taken => true,
        Occupancy::Released(id) | Occupancy::Idle(id) => !gone(id),
    });
    gpu.slices.push(PlacedSlice { shape: candidate.shape, occupancy: Occupancy::Taken });
}

#[cfg(test)]
mod closeness_tests;
#[cfg(test)]
mod distinct_tests;
#[cfg(test)]
mod exacting_tests;
#[cfg(test)]
mod mig_replica_tests;
#[cfg(test)]
mod replica_tests;
#[cfg(test)]
mod tests;
