//! What this replica admitted lately, and how long it takes until the extender tells of it. Pure.

use super::delay::Delay;
use kerf_core::contract::Slices;
use kerf_core::resource::ResourceName;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long an admission counts of which nobody has heard: what comes after this webhook may have refused the pod.
pub(super) const LIFETIME: Duration = Duration::from_secs(5);

/// The admissions of late, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Mine {
    admitted: VecDeque<Admitted>,
    delay: Delay,
}

#[derive(Debug)]
struct Admitted {
    at: Instant,
    name: ResourceName,
    count: u32,
    /// How many of them the extender has not told of yet.
    untold: u32,
}

impl Mine {
    /// A pod was admitted that wants these.
    pub fn admit(&mut self, slices: Slices<u32>, now: Instant) {
        let admitted = |(name, count)| Admitted { at: now, name, count, untold: count };
        self.admitted.extend(slices.into_iter().map(admitted));
    }

    /// The extender has told of so many more slices of a name: of the oldest.
    pub fn told(&mut self, name: ResourceName, mut seen: u64, now: Instant) {
        for entry in self.admitted.iter_mut().filter(|entry| entry.name == name && entry.untold > 0) {
            let known = entry.untold.min(u32::try_from(seen).unwrap_or(u32::MAX));
            if known == 0 {
                break;
            }
            entry.untold -= known;
            seen -= u64::from(known);
            self.delay.took(now.saturating_duration_since(entry.at), now);
        }
    }

    /// Forgets what is long ago.
    pub fn forget(&mut self, now: Instant) {
        let age = |entry: &Admitted| now.saturating_duration_since(entry.at);
        for entry in self.admitted.iter_mut().filter(|entry| age(entry) > LIFETIME) {
            entry.untold = 0;
        }
        let lately = self.lately(now);
        self.admitted.retain(|entry| entry.untold > 0 || age(entry) <= lately);
    }

    /// The slices of which the extender has not told yet.
    pub fn untold(&self) -> Slices<u32> {
        sum(self.admitted.iter().map(|entry| (entry.name, entry.untold)))
    }

    /// All slices of late.
    pub fn all(&self) -> Slices<u32> {
        sum(self.admitted.iter().map(|entry| (entry.name, entry.count)))
    }

    /// How long it takes until the extender tells of a pod.
    pub fn delay(&self, now: Instant) -> Duration {
        self.delay.lately(now)
    }

    /// For how long a time it may be that the extender has not told of what others admitted: twice what it took with those of
    /// this replica, as theirs were not admitted at the same time.
    pub fn lately(&self, now: Instant) -> Duration {
        let oldest = self.admitted.iter().find(|entry| entry.untold > 0);
        let waits = oldest.map_or(Duration::ZERO, |entry| now.saturating_duration_since(entry.at));
        self.delay(now).max(waits) * 2
    }
}

/// The slices by name, without those that are none.
pub(super) fn sum(slices: impl Iterator<Item = (ResourceName, u32)>) -> Slices<u32> {
    let mut all = Slices::new();
    for (name, count) in slices.filter(|(_, count)| *count > 0) {
        let sum: &mut u32 = all.entry(name).or_default();
        *sum = sum.saturating_add(count);
    }
    all
}
