//! Decides where a GPU instance may go beside the existing ones. Pure: values in, answer out.
//!
//! It is written from NVIDIA's tables alone, so that it is a second opinion on any planner that is tested with it.

use serde::{Deserialize, Serialize};

use crate::model::Model;
use crate::profile::Profile;

/// A range of the memory-slice axis (for compute instances, of the compute axis).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Placement {
    /// The first slice of the range.
    pub start: u32,
    pub size: u32,
}

impl Placement {
    /// Whether the two share a slice.
    #[must_use]
    pub fn overlaps(self, other: Placement) -> bool {
        self.start < other.start + other.size && other.start < self.start + self.size
    }
}

/// A GPU instance, reduced to what the rules need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'a> {
    pub profile: &'a Profile,
    pub placement: Placement,
}

/// Why an instance may not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The profile never starts there or has another size.
    NoSuchPlace,
    /// An existing instance has one of the slices.
    Overlap,
    /// Too few compute slices are left.
    ComputeSpent,
    /// The GPU has the maximum number of this profile already.
    TooMany,
    /// Another instance has the media extension.
    MediaTaken,
}

impl Profile {
    /// Every place that the profile could ever have, free or not.
    #[must_use]
    pub fn places(&self) -> Vec<Placement> {
        self.starts.iter().map(|&start| Placement { start, size: self.memory_slices }).collect()
    }
}

/// Checks whether `wanted` may be created beside `existing`.
pub(crate) fn admit(model: Model, existing: &[Placed<'_>], wanted: Placed<'_>) -> Result<(), Refusal> {
    if !wanted.profile.places().contains(&wanted.placement) {
        return Err(Refusal::NoSuchPlace);
    }
    if existing.iter().any(|other| other.placement.overlaps(wanted.placement)) {
        return Err(Refusal::Overlap);
    }
    let compute: u32 = existing.iter().map(|other| other.profile.compute_slices).sum();
    if compute + wanted.profile.compute_slices > model.compute_slices() {
        return Err(Refusal::ComputeSpent);
    }
    let same = existing.iter().filter(|other| other.profile.id == wanted.profile.id).count();
    if u32::try_from(same).unwrap_or(u32::MAX) >= wanted.profile.max_instances {
        return Err(Refusal::TooMany);
    }
    if wanted.profile.media_extension && existing.iter().any(|other| other.profile.media_extension) {
        return Err(Refusal::MediaTaken);
    }
    Ok(())
}

/// The places where `profile` could be created now, by start.
pub(crate) fn free_places(model: Model, existing: &[Placed<'_>], profile: &Profile) -> Vec<Placement> {
    let mut places = profile.places();
    places.retain(|&placement| admit(model, existing, Placed { profile, placement }).is_ok());
    places
}

/// The place that the driver takes if none is given: the one that blocks the fewest free places of any profile, then
/// the lowest. This gives the orders in NVIDIA's guide (1g at 6, 4, 5, 0, 1, 2, 3; 3g at 4, 0; 2g at 4, 0, 2), and its
/// known trap: 1g, 1g, 2g leave no room for a 3g.
pub(crate) fn drivers_choice(model: Model, existing: &[Placed<'_>], profile: &Profile) -> Option<Placement> {
    let open: Vec<Placement> =
        model.profiles().iter().flat_map(|other| free_places(model, existing, other)).collect();
    free_places(model, existing, profile)
        .into_iter()
        .min_by_key(|&place| (open.iter().filter(|&&other| other.overlaps(place)).count(), place.start))
}

/// How many more of `profile` fit (`nvmlDeviceGetGpuInstanceRemainingCapacity`). Places of one profile never overlap
/// each other, so every order of filling gives the same number.
pub(crate) fn remaining(model: Model, existing: &[Placed<'_>], profile: &Profile) -> u32 {
    let mut placed = existing.to_vec();
    let mut count = 0;
    while let Some(&placement) = free_places(model, &placed, profile).first() {
        placed.push(Placed { profile, placement });
        count += 1;
    }
    count
}

/// The id that the driver assigns to a GPU instance: its node in the tree of halves of the axis, counted by level, so
/// that 7g is 0, the halves are 1 and 2, the quarters 3 to 6, and the slices start at 7. Boards with other slices fused
/// off count differently, so nothing may rely on it.
pub(crate) fn instance_id(model: Model, placement: Placement) -> u32 {
    model.memory_slices() / placement.size - 1 + placement.start / placement.size
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
