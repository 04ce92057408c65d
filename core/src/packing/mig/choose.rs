//! The best place for a GPU instance on one GPU.

use super::places::{PlaceId, PlaceSet, Places};
use super::prices::Prices;
use super::states::{StateId, States};
use crate::contract::ContainerRequest;
use crate::mig::{MigTable, Profile, ProfileEntry};
use crate::packing::Cost;
use crate::units::ComputePercent;

/// The bonus for each instance on the GPU, so that some GPUs fill up and others drain.
const COMPANY: i64 = 30_000;

/// The cost of each free memory slice that remains, so that the fuller of equal GPUs is taken.
const SPARE_SLICE: i64 = 100;

/// The bonus for an idle instance that serves the request, because it saves a cut.
pub(super) const REUSE: i64 = 20_000;

/// The cost of each memory slice of an idle instance that must be destroyed.
const DESTROYED_SLICE: i64 = 5_000;

/// The instances on one GPU, as places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cut {
    /// Places that are reserved, held, or not kerf's.
    pub held: PlaceSet,
    /// Places of idle instances, which may be used again or destroyed.
    pub idle: PlaceSet,
}

/// A place, with the consequences of taking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The place that is taken.
    pub place: PlaceId,
    /// Idle instances that must be destroyed first. If the place itself is idle, nothing is created.
    pub destroyed: PlaceSet,
    /// The cost of taking the place.
    pub cost: Cost,
}

/// The profiles that serve a request: the one that the user wrote, otherwise the plain ones with the fewest memory
/// slices. A neutral name asks for memory alone.
pub fn serving(table: &MigTable, request: &ContainerRequest) -> impl Iterator<Item = Profile> {
    let is_meant = move |e: &ProfileEntry| match request.profile {
        Some(profile) => e.profile == profile,
        None if request.resource.is_neutral() => e.profile.is_plain(),
        None => request.resource.is_kept_by(e.profile),
    };
    let serves = move |e: &&ProfileEntry| {
        is_meant(e)
            && e.profile.size() >= request.size_gb
            && request.memory.is_none_or(|memory| e.memory >= memory)
            && request.compute.is_none_or(|compute| has_compute(table, e.profile.compute(), compute))
    };
    let size = table.entries().iter().filter(serves).map(|e| e.size).min();
    table.entries().iter().filter(serves).filter(move |e| Some(e.size) == size).map(|e| e.profile)
}

/// Whether this many compute slices are at least this part of the GPU's compute.
pub fn has_compute(table: &MigTable, slices: u8, least: ComputePercent) -> bool {
    u32::from(slices) * 100 >= u32::from(least.get()) * u32::from(table.compute())
}

/// The places of `places` that serve a request. Those with the most compute come first: the name guarantees a minimum,
/// and more compute on the same memory slices costs nothing.
#[must_use]
pub fn wanted(places: &Places, table: &MigTable, request: &ContainerRequest) -> Vec<PlaceId> {
    let profiles = serving(table, request);
    let mut wanted: Vec<_> = profiles.flat_map(|profile| places.for_profile(profile).iter()).collect();
    wanted.sort_by_key(|place| std::cmp::Reverse(places.instance(*place).profile.compute()));
    wanted
}

/// The cost of a place on a GPU in this state, without its idle instances; `None` if the place is taken.
pub(super) fn state_cost(
    states: &States,
    prices: &Prices,
    axis: u8,
    state: StateId,
    place: PlaceId,
) -> Option<Cost> {
    let after = states.after(state, place)?;
    let lost = prices.value(state).0 - prices.value(after).0;
    let spare = i64::from(u32::from(axis) - states.taken(after));
    Some(Cost(lost - COMPANY * i64::from(states.instances(state)) + SPARE_SLICE * spare))
}

/// Adds the effect of the GPU's idle instances to the cost of a place; `None` if the instance cannot be created.
pub(super) fn with_idle(places: &Places, cut: Cut, place: PlaceId, cost: Cost) -> Option<Choice> {
    if !places.has_room(cut.held, place) {
        return None;
    }
    if cut.idle.has(place) {
        return Some(Choice { place, destroyed: PlaceSet::default(), cost: Cost(cost.0 - REUSE) });
    }
    let destroyed = in_the_way(places, cut, place);
    let slices = i64::from(places.slices(destroyed));
    Some(Choice { place, destroyed, cost: Cost(cost.0 + DESTROYED_SLICE * slices) })
}

/// Idle instances that exclude the place, and further ones while compute slices or the profile's maximum do not
/// suffice.
fn in_the_way(places: &Places, cut: Cut, place: PlaceId) -> PlaceSet {
    let mut destroyed = cut.idle.intersection(places.excluded(place));
    loop {
        let staying = cut.idle.without(destroyed);
        if places.has_room(cut.held.union(staying), place) {
            return destroyed;
        }
        match places.biggest_claim(cut.held, staying, place) {
            Some(next) => destroyed = destroyed.with_place(next),
            None => return destroyed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::mig_table;

    #[test]
    fn exactly_the_part_of_the_compute_suffices() {
        let table = mig_table("H100-80GB");
        let has = |slices, least| has_compute(&table, slices, ComputePercent::try_from(least).unwrap());
        assert!(has(7, 100) && !has(6, 100));
        assert!(has(1, 14) && !has(1, 15), "a seventh is 14.3 %");
        assert!(has(3, 42) && !has(3, 43), "three sevenths are 42.9 %");
    }
}
