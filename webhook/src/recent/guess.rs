//! What other replicas may have admitted of which the extender has not told yet. Pure.

use kerf_core::contract::Slices;
use std::collections::BTreeSet;

/// What is wanted already if each replica admits as much as this one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guess {
    /// What pods wait for by the extender's word.
    pub(super) published: Slices<u32>,
    /// What this replica has admitted of which the extender has not told.
    pub(super) untold: Slices<u32>,
    /// What this replica has admitted lately, that included.
    pub(super) mine: Slices<u32>,
    /// What was told lately of each other replica.
    pub(super) others: Vec<Slices<u32>>,
    /// How many replicas come before this one where what is left cannot be shared evenly.
    pub(super) before: u32,
}

impl Guess {
    /// The slices that pods wait for, as far as it matters to one that wants slices of these names: each other replica has
    /// admitted as many as this one lately, and what was told of it is part of that. Of the last that cannot be shared evenly,
    /// each replica leaves one to each that comes before it.
    pub fn pending(&self, wanted: &Slices<u32>) -> Slices<u32> {
        let mut pending = self.published.clone();
        let names: BTreeSet<_> =
            [wanted, &self.mine, &self.untold].into_iter().flat_map(Slices::keys).collect();
        for name in names {
            let of = |slices: &Slices<u32>| slices.get(name).copied().unwrap_or(0);
            let left_out = self.others.iter().map(|told| of(&self.mine).saturating_sub(of(told)));
            let guess = left_out.fold(of(&self.untold).saturating_add(self.before), u32::saturating_add);
            let all = pending.entry(*name).or_default();
            *all = all.saturating_add(guess);
        }
        pending
    }

    /// Whether this replica has admitted some of these of which the extender has said nothing yet.
    pub fn awaits(&self, wanted: &Slices<u32>) -> bool {
        wanted.keys().any(|name| self.untold.contains_key(name))
    }
}
