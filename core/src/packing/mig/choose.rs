//! The best place for a GPU instance on one GPU.

use super::places::{PlaceId, PlaceSet, Places};
use super::prices::Prices;
use super::states::{StateId, States};
use crate::contract::ContainerRequest;
use crate::mig::{MigTable, Profile, ProfileEntry};
use crate::packing::Cost;
use crate::units::ComputePercent;

/// What an instance already on the GPU is worth to a newcomer: GPUs that fill up leave others to drain.
const COMPANY: i64 = 30_000;

/// A free memory slice more costs this much: among equals the fuller GPU is taken.
const SPARE_SLICE: i64 = 100;

/// An idle instance that serves spares a cut.
pub(super) const REUSE: i64 = 20_000;

/// A memory slice of an idle instance that must go.
const DESTROYED_SLICE: i64 = 5_000;

/// How one GPU is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cut {
    /// Reserved, held, or not ours.
    pub held: PlaceSet,
    /// Nobody's: may be used again or destroyed.
    pub idle: PlaceSet,
}

/// A place, and what taking it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The place.
    pub place: PlaceId,
    /// Idle instances that must go first. Nothing is created where the place itself is idle.
    pub destroyed: PlaceSet,
    /// What it costs.
    pub cost: Cost,
}

/// The profiles that serve a request: that which the user wrote, or the plain ones that take the fewest memory slices. A neutral
/// name asks for memory alone.
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

/// Whether so many compute slices are at least this part of the GPU's.
pub fn has_compute(table: &MigTable, slices: u8, least: ComputePercent) -> bool {
    u32::from(slices) * 100 >= u32::from(least.get()) * u32::from(table.compute())
}

/// The places of `places` that serve a request. The most compute comes first: a name promises a minimum, and on the same
/// memory slices compute is free.
#[must_use]
pub fn wanted(places: &Places, table: &MigTable, request: &ContainerRequest) -> Vec<PlaceId> {
    let profiles = serving(table, request);
    let mut wanted: Vec<_> = profiles.flat_map(|profile| places.of_profile(profile).iter()).collect();
    wanted.sort_by_key(|place| std::cmp::Reverse(places.instance(*place).profile.compute()));
    wanted
}

/// What a place costs on a GPU in this state, before idle instances are looked at; `None` where it is taken.
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

/// What the idle instances of a GPU add to the cost of a place on it; `None` where the instance cannot be created.
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

/// Idle instances that the place excludes, and others while compute slices or the profile's maximum do not suffice.
fn in_the_way(places: &Places, cut: Cut, place: PlaceId) -> PlaceSet {
    let mut destroyed = cut.idle.and(places.excluded(place));
    loop {
        let staying = cut.idle.without(destroyed);
        if places.has_room(cut.held.or(staying), place) {
            return destroyed;
        }
        match places.biggest_claim(cut.held, staying, place) {
            Some(next) => destroyed = destroyed.with(next),
            None => return destroyed,
        }
    }
}
