//! On which managed node each pod has its reservation, and how far it is on the way to its Binding.

use hashbrown::{HashMap, HashSet};
use kerf_core::names::{NodeName, PodUid};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub struct Reservations {
    nodes: HashMap<PodUid, NodeName>,
    /// Those pods that were not bound when they were last asked about.
    unbound: HashSet<PodUid>,
    /// The stages of pods without a Binding. They are for metrics only: no decision reads them.
    stages: HashMap<PodUid, StageTimes>,
}

/// When a pod without a Binding reached its stages.
#[derive(Debug, Clone, Copy)]
struct StageTimes {
    reserved: Instant,
    accepted: Option<Instant>,
    ready: Option<Instant>,
}

/// How long the stages of a bound pod took, as far as they were seen. On a static node none is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages {
    /// Time from the first proposal to the agent's acceptance.
    pub accepted: Option<Duration>,
    /// Time from the acceptance to ready slices.
    pub ready: Option<Duration>,
    /// Time from ready slices to the Binding.
    pub bound: Option<Duration>,
}

impl Reservations {
    pub fn insert(&mut self, uid: PodUid, node: NodeName) {
        self.unbound.insert(uid.clone());
        self.nodes.insert(uid, node);
    }

    pub fn remove(&mut self, uid: &PodUid) {
        self.unbound.remove(uid);
        self.nodes.remove(uid);
        self.stages.remove(uid);
    }

    pub fn get(&self, uid: &PodUid) -> Option<&NodeName> {
        self.nodes.get(uid)
    }

    pub fn has(&self, uid: &PodUid) -> bool {
        self.nodes.contains_key(uid)
    }

    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.nodes.keys()
    }

    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The pods that are not bound. A pod for which `is_bound` is true is not asked about again, because no pod is
    /// unbound again. Most reservations are those of bound pods.
    pub fn unbound(&mut self, is_bound: impl Fn(&PodUid) -> bool) -> impl Iterator<Item = &PodUid> {
        self.unbound.retain(|uid| !is_bound(uid));
        self.unbound.iter()
    }

    /// Starts the clock at a pod's first proposal.
    pub fn start_stages(&mut self, uid: &PodUid, now: Instant) {
        // Stages are removed with the reservation, so a pod without one would leave them behind.
        if self.has(uid) {
            self.stages.insert(uid.clone(), StageTimes { reserved: now, accepted: None, ready: None });
        }
    }

    /// Records that the agent has accepted a pod's proposal. Only the first call counts, because a later bind renews
    /// the same reservation.
    pub fn set_accepted(&mut self, uid: &PodUid, now: Instant) {
        if let Some(times) = self.stages.get_mut(uid) {
            times.accepted.get_or_insert(now);
        }
    }

    /// Records that the agent has reported all of a pod's slices as ready. Only the first call counts.
    pub fn set_ready(&mut self, uid: &PodUid, now: Instant) {
        if let Some(times) = self.stages.get_mut(uid) {
            times.ready.get_or_insert(now);
        }
    }

    /// Ends the stages of a bound pod, and returns how long they took.
    pub fn end_stages(&mut self, uid: &PodUid, now: Instant) -> Stages {
        let Some(StageTimes { reserved, accepted, ready }) = self.stages.remove(uid) else {
            return Stages::default();
        };
        let between = |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
        Stages {
            accepted: between(Some(reserved), accepted),
            ready: between(accepted, ready),
            bound: between(ready, Some(now)),
        }
    }

    /// Forgets the stages, which only a leader has.
    pub fn end_term(&mut self) {
        self.stages.clear();
    }

    #[cfg(test)]
    pub fn has_stages(&self) -> bool {
        !self.stages.is_empty()
    }
}

#[cfg(test)]
#[path = "stages_tests.rs"]
mod stage_tests;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_pod_keeps_its_place_and_is_not_asked_about_again() {
        let [bound, waits] = ["bound", "waits"].map(PodUid::new);
        let mut places = Reservations::default();
        for uid in [&bound, &waits] {
            places.insert(uid.clone(), "n".into());
        }
        assert_eq!(places.unbound(|uid| *uid == bound).collect::<Vec<_>>(), [&waits]);
        let is_bound = |uid: &PodUid| {
            assert_eq!(*uid, waits);
            false
        };
        assert_eq!(places.unbound(is_bound).collect::<Vec<_>>(), [&waits]);
        assert!(places.has(&bound) && places.count() == 2);
        places.remove(&waits);
        assert_eq!(places.unbound(|_| false).count(), 0);
    }
}
