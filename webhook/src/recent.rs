//! What was admitted here a moment ago, as long as the extender's word on demand cannot contain it: between an admission and
//! the extender's next document lies up to a second, in which a burst would be sent to a kind that is full. Pure: the time
//! comes as an argument.
//!
//! What other replicas admit is known once the extender has seen it.

use kerf_core::contract::{Demand, RequestDocument};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How long an admission counts of which nobody has heard: what comes after this webhook may have refused the pod.
const LIFETIME: Duration = Duration::from_secs(5);

/// What is wanted already, as this webhook sees it.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    published: Option<Demand>,
    /// The oldest first.
    admitted: VecDeque<Admitted>,
    /// Rises with every admission.
    version: u64,
}

#[derive(Debug)]
struct Admitted {
    at: Instant,
    name: ResourceName,
    count: u64,
}

impl Recent {
    /// A pod with this document was admitted.
    pub fn admitted(&mut self, document: &RequestDocument, now: Instant) {
        self.version += 1;
        let slices = document.slices();
        self.admitted.extend(slices.into_iter().map(|(name, count)| Admitted {
            at: now,
            name,
            count: count.into(),
        }));
    }

    /// How many admissions there were. Who has decided by an older state decides again.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The extender has published this; `None` for a document that is gone or cannot be read.
    pub fn published(&mut self, demand: Option<Demand>) {
        let is_former = |known: &Demand| demand.as_ref().is_some_and(|demand| demand.epoch < known.epoch);
        if self.published.as_ref().is_some_and(is_former) {
            return;
        }
        if let (Some(known), Some(demand)) = (&self.published, &demand)
            && known.epoch == demand.epoch
        {
            for (name, count) in &demand.arrived {
                let seen = count.saturating_sub(known.arrived.get(name).copied().unwrap_or(0));
                forget(&mut self.admitted, *name, seen);
            }
        }
        self.published = demand;
    }

    /// The slices that pods wait for, by what was published and admitted since.
    pub fn pending(&mut self, now: Instant) -> BTreeMap<ResourceName, u32> {
        while self.admitted.front().is_some_and(|oldest| now.duration_since(oldest.at) > LIFETIME) {
            self.admitted.pop_front();
        }
        let mut pending = self.published.as_ref().map(|demand| demand.pending.clone()).unwrap_or_default();
        for Admitted { name, count, .. } in &self.admitted {
            let all = pending.entry(*name).or_default();
            *all = all.saturating_add(u32::try_from(*count).unwrap_or(u32::MAX));
        }
        pending
    }
}

/// Forgets the oldest `seen` slices of a name.
fn forget(admitted: &mut VecDeque<Admitted>, name: ResourceName, mut seen: u64) {
    for entry in admitted.iter_mut().filter(|entry| entry.name == name) {
        let known = entry.count.min(seen);
        entry.count -= known;
        seen -= known;
    }
    admitted.retain(|entry| entry.count > 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::testing::request;

    const MIG: &str = "nvidia.com/mig-1g.10gb";

    fn name(text: &str) -> ResourceName {
        text.parse().unwrap()
    }

    fn demand(epoch: u64, pending: u32, arrived: u64) -> Demand {
        let (pending, arrived) = ([(name(MIG), pending)].into(), [(name(MIG), arrived)].into());
        Demand { pending, arrived, ..Demand::of(epoch) }
    }

    fn pending(recent: &mut Recent, now: Instant) -> u32 {
        recent.pending(now).get(&name(MIG)).copied().unwrap_or(0)
    }

    #[test]
    fn an_admission_counts_until_the_extender_has_seen_the_pod() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        recent.published(Some(demand(1, 2, 10)));
        recent.admitted(&request(MIG, 2), now);
        recent.admitted(&request(MIG, 1), now);
        assert_eq!(pending(&mut recent, now), 5);
        // Two slices have come, and one of those that waited has got its.
        recent.published(Some(demand(1, 3, 12)));
        assert_eq!(pending(&mut recent, now), 4);
        recent.published(Some(demand(1, 0, 13)));
        assert_eq!(pending(&mut recent, now), 0);
    }

    #[test]
    fn an_admission_of_which_nobody_hears_is_forgotten() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        recent.admitted(&request(MIG, 1), now);
        recent.admitted(&request(MIG, 1), now + LIFETIME);
        assert_eq!(pending(&mut recent, now + LIFETIME), 2);
        assert_eq!(pending(&mut recent, now + LIFETIME + Duration::from_millis(1)), 1);
        assert_eq!(pending(&mut recent, now), 1, "what is forgotten stays so");
    }

    #[test]
    fn a_new_leader_counts_anew_and_a_former_one_is_not_heard() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        recent.published(Some(demand(1, 0, 100)));
        recent.admitted(&request(MIG, 1), now);
        recent.published(Some(demand(2, 4, 300)));
        assert_eq!(pending(&mut recent, now), 5, "which pods it has seen is not known");
        recent.published(Some(demand(1, 0, 101)));
        assert_eq!(pending(&mut recent, now), 5);
        recent.published(Some(demand(2, 5, 301)));
        assert_eq!(pending(&mut recent, now), 5);
        recent.published(None);
        assert_eq!(pending(&mut recent, now), 0);
    }

    #[test]
    fn names_do_not_answer_for_each_other() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        recent.published(Some(demand(1, 0, 0)));
        recent.admitted(&request("nvidia.com/gpu-4gb", 1), now);
        recent.published(Some(demand(1, 1, 1)));
        assert_eq!(recent.pending(now), [(name(MIG), 1), (name("nvidia.com/gpu-4gb"), 1)].into());
        assert_eq!(recent.version(), 1);
    }
}
