//! The stages of reserved pods on their way to their Binding. They are for metrics only: no decision reads them.

use super::ClusterIndex;
use kerf_core::names::PodUid;
use std::time::{Duration, Instant};

/// A pod with a reservation on a managed node and without a Binding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Journey {
    reserved: Instant,
    accepted: Option<Instant>,
    ready: Option<Instant>,
}

/// How long the stages of a bound pod took, as far as they were seen. On a static node none is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages {
    /// From the first proposal until the agent has accepted one.
    pub accepted: Option<Duration>,
    /// From then until all slices are ready for the pod.
    pub ready: Option<Duration>,
    /// From then until the Binding is made.
    pub bound: Option<Duration>,
}

impl ClusterIndex {
    /// Starts the clock at a pod's first proposal.
    pub fn set_out(&mut self, uid: &PodUid, now: Instant) {
        if self.places.has(uid) {
            self.lead.journeys.insert(uid.clone(), Journey { reserved: now, accepted: None, ready: None });
        }
    }

    /// The agent has accepted a pod's proposal.
    pub fn note_accepted(&mut self, uid: &PodUid, now: Instant) {
        if let Some(journey) = self.lead.journeys.get_mut(uid) {
            journey.accepted.get_or_insert(now);
        }
    }

    /// The agent has reported that all of a pod's slices are ready.
    pub fn note_ready(&mut self, uid: &PodUid, now: Instant) {
        if let Some(journey) = self.lead.journeys.get_mut(uid) {
            journey.ready.get_or_insert(now);
        }
    }

    /// Ends the stages of a bound pod, and returns how long they took.
    pub fn arrive(&mut self, uid: &PodUid, now: Instant) -> Stages {
        let Some(Journey { reserved, accepted, ready, .. }) = self.lead.journeys.remove(uid) else {
            return Stages::default();
        };
        let between = |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?));
        Stages {
            accepted: between(Some(reserved), accepted),
            ready: between(accepted, ready),
            bound: between(ready, Some(now)),
        }
    }
}

#[cfg(test)]
#[path = "journey_tests.rs"]
mod tests;
