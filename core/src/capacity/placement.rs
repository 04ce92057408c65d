//! One legal placement for a set of MIG profiles, always the same one.

use crate::mig::{Instance, MigTable, Placement, Profile, ProfileEntry};
use std::collections::BTreeSet;

/// Bounds the search. Known GPUs are far below it (RTX PRO 6000: 12 slices).
const AXIS_LIMIT: u8 = 16;

/// Places for all these profiles and counts on an empty GPU with this table; `None` if they do not fit.
///
/// Profiles with the most memory slices come first, and each starts as far to the front as the rest allows.
#[must_use]
pub(super) fn place(table: &MigTable, profiles: &[(Profile, u32)]) -> Option<Vec<Instance>> {
    let mut entries: Vec<&ProfileEntry> = Vec::new();
    for (profile, count) in profiles {
        let entry = table.entry(*profile)?;
        if *count > u32::from(entry.max) {
            return None;
        }
        entries.extend((0..*count).map(|_| entry));
    }
    // Limits other than memory slices are checked once, because they are the same for every placement.
    let compute: u32 = entries.iter().map(|entry| u32::from(entry.profile.compute())).sum();
    let with_media = entries.iter().filter(|entry| entry.profile.claims_media()).count();
    if compute > u32::from(table.compute()) || with_media > 1 || table.axis() > AXIS_LIMIT {
        return None;
    }
    entries.sort_by_key(|entry| (std::cmp::Reverse(entry.size), entry.id));
    let mut search = Search { axis: table.axis(), entries, placed: Vec::new(), hopeless: BTreeSet::new() };
    search.place_rest(0).then(|| search.instances())
}

struct Search<'t> {
    axis: u8,
    entries: Vec<&'t ProfileEntry>,
    /// The places of the first entries.
    placed: Vec<Placement>,
    /// Numbers of placed entries with taken memory slices from which the rest cannot be placed, so that the search does
    /// not try them again.
    hopeless: BTreeSet<(usize, u32)>,
}

impl Search<'_> {
    /// Places the remaining entries beside these memory slices.
    fn place_rest(&mut self, mask: u32) -> bool {
        let Some(entry) = self.entries.get(self.placed.len()).copied() else { return true };
        let key = (self.placed.len(), mask);
        if self.hopeless.contains(&key) {
            return false;
        }
        for placement in self.placements(entry).filter(|placement| placement.mask() & mask == 0) {
            self.placed.push(placement);
            if self.place_rest(mask | placement.mask()) {
                return true;
            }
            self.placed.pop();
        }
        self.hopeless.insert(key);
        false
    }

    /// The places of an entry on the GPU, from the front.
    fn placements(&self, entry: &ProfileEntry) -> impl Iterator<Item = Placement> + use<> {
        let axis = self.axis;
        let is_on_it = move |placement: &Placement| {
            placement.start.checked_add(placement.size).is_some_and(|end| end <= axis)
        };
        let placements: BTreeSet<Placement> = entry.placements().filter(is_on_it).collect();
        placements.into_iter()
    }

    fn instances(&self) -> Vec<Instance> {
        let placed = self.entries.iter().zip(&self.placed);
        placed.map(|(entry, placement)| Instance { profile: entry.profile, placement: *placement }).collect()
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
