//! What the extender told lately of other replicas' admissions. Pure.

use super::mine::{LIFETIME, sum};
use kerf_core::contract::{Demand, Slices};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// The oldest first.
#[derive(Debug, Default)]
pub(super) struct Others(VecDeque<Told>);

#[derive(Debug)]
struct Told {
    at: Instant,
    replica: String,
    name: ResourceName,
    count: u32,
}

impl Others {
    /// The extender tells of more than it knew; `me` is left out.
    pub fn told(&mut self, known: &Demand, demand: &Demand, me: &str, now: Instant) {
        while self.0.front().is_some_and(|told| now.saturating_duration_since(told.at) > 2 * LIFETIME) {
            self.0.pop_front();
        }
        // Of one that was left out of the last word nothing is known to be new.
        let is_known = |replica: &&String| *replica != me && known.arrived.contains_key(*replica);
        for replica in demand.arrived.keys().filter(is_known) {
            let told = arrived_since(known, demand, replica).map(|(name, count)| Told {
                at: now,
                replica: replica.clone(),
                name,
                count: u32::try_from(count).unwrap_or(u32::MAX),
            });
            self.0.extend(told);
        }
    }

    /// What was told of each of these replicas within so long.
    pub fn lately<'r>(
        &self,
        replicas: impl Iterator<Item = &'r String>,
        within: Duration,
        now: Instant,
    ) -> Vec<Slices<u32>> {
        let is_late = |told: &&Told| now.saturating_duration_since(told.at) <= within;
        let mut by_replica: BTreeMap<&str, Vec<&Told>> = BTreeMap::new();
        for told in self.0.iter().filter(is_late) {
            by_replica.entry(&told.replica).or_default().push(told);
        }
        let of = |replica: &String| {
            let told = by_replica.get(replica.as_str()).into_iter().flatten();
            sum(told.map(|told| (told.name, told.count)))
        };
        replicas.map(of).collect()
    }
}

/// How many more slices of each name have come of a replica than were known.
pub(super) fn arrived_since<'d>(
    known: &'d Demand,
    demand: &'d Demand,
    replica: &str,
) -> impl Iterator<Item = (ResourceName, u64)> + use<'d> {
    let before = known.arrived.get(replica);
    let arrived = demand.arrived.get(replica).into_iter().flatten();
    let more = move |(name, count): (&ResourceName, &u64)| {
        (*name, count.saturating_sub(before.and_then(|before| before.get(name)).copied().unwrap_or(0)))
    };
    arrived.map(more).filter(|(_, count)| *count > 0)
}
