//! How far reserved pods are on their way to their Binding, and since when. For metrics alone: no decision reads it.

use super::ClusterIndex;
use kerf_core::contract::{GpuNodeStatus, WantedSlice};
use kerf_core::ledger::reserved;
use kerf_core::names::{NodeName, PodUid};
use std::time::{Duration, Instant};

/// A pod with a reservation on a managed node, and without a Binding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Journey {
    reserved: Instant,
    /// The revision of the spec that has the reservation.
    revision: Option<u64>,
    accepted: Option<Instant>,
    ready: Option<Instant>,
}

/// How long the stages of a bound pod's way took, as far as they were seen. On a static node none is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stages {
    /// From the reservation until the agent had read it.
    pub accepted: Option<Duration>,
    /// From then until all slices were ready for the pod.
    pub ready: Option<Duration>,
    /// From then until the Binding was made.
    pub bound: Option<Duration>,
}

impl ClusterIndex {
    /// A pod has got a reservation.
    pub fn set_out(&mut self, uid: &PodUid, now: Instant) {
        if self.places.contains_key(uid) {
            let journey = Journey { reserved: now, revision: None, accepted: None, ready: None };
            self.journeys.insert(uid.clone(), journey);
        }
    }

    /// Something was written or reported at a node: notes which of its pods are a stage further.
    pub fn note_stages(&mut self, name: &NodeName, now: Instant) {
        let Some(node) = self.nodes.get(name).filter(|_| !self.journeys.is_empty()) else { return };
        let (Ok(spec), Ok(status)) = (&node.spec, &node.status) else { return };
        for uid in node.promised.iter().filter(|uid| spec.is_committed(uid)) {
            let Some(journey) = self.journeys.get_mut(uid) else { continue };
            let revision = *journey.revision.get_or_insert(spec.committed().revision);
            if status.observed_revision >= revision {
                journey.accepted.get_or_insert(now);
            }
            if reserved(spec.committed(), uid).all(|slice| is_ready(status, slice, uid)) {
                journey.accepted.get_or_insert(now);
                journey.ready.get_or_insert(now);
            }
        }
    }

    /// A pod was bound: how long its stages took.
    pub fn arrive(&mut self, uid: &PodUid, now: Instant) -> Stages {
        let Some(Journey { reserved, accepted, ready, .. }) = self.journeys.remove(uid) else {
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

/// Whether the kubelet offers a slice to the pod.
pub(super) fn is_ready(status: &GpuNodeStatus, slice: &WantedSlice, uid: &PodUid) -> bool {
    status.slice(&slice.id).is_some_and(|slice| slice.ready_for.as_ref() == Some(uid))
}

#[cfg(test)]
#[path = "journey_tests.rs"]
mod tests;
