//! Releases an unused reservation that blocks another pod.
//!
//! Of the slices under one resource name a node offers that of the first reservation that is not allocated yet, and
//! slices of equal worth (`kerf_core::offer`). The other reservations wait until that pod is bound and has its device.
//! A pod in the scheduler's backoff may come late or never, so its reservation makes way for a pod whose bind is open.
//! Its slice stays, idle.

use super::effects::ReleaseReason;
use super::reserving::Reserving;
use kerf_core::contract::{SliceState, Wanted};
use kerf_core::names::{NodeName, PodUid};

impl Reserving<'_> {
    /// Releases the unused reservations that block the pod's slices on this node. If two pods block each other, the one
    /// with an open bind goes on. If both have one, the bind that ends last goes on.
    pub(super) fn clear_the_way(&mut self, uid: &PodUid, name: &NodeName) {
        for blocking in self.blocking(uid, name) {
            if self.is_unused(&blocking) {
                self.release_unused(&blocking, ReleaseReason::Blocking);
            }
        }
    }

    /// The pods whose reservations block the pod's slices, as the agent reports them.
    fn blocking(&self, uid: &PodUid, name: &NodeName) -> Vec<PodUid> {
        let Some(node) = self.updates.nodes.managed.get(name) else { return Vec::new() };
        let wanted: Vec<Wanted<'_>> = node.wanted().collect();
        let observed = |slice: &Wanted<'_>| node.status().slice(slice.id);
        let is_in = |slice: &Wanted<'_>, state| observed(slice).is_some_and(|s| s.state == state);
        let of_pod = wanted.iter().filter(|slice| slice.is_reserved_for(uid));
        let waiting = of_pod.filter(|slice| is_in(slice, SliceState::Waiting));
        let names = waiting.filter_map(|slice| Some(slice.reservation?.resource));
        let first_of = |name| {
            let free = wanted.iter().filter(|slice| observed(slice).is_none_or(|s| s.holder.is_none()));
            let mut of_name = free.filter(|slice| slice.reservation.is_some_and(|r| r.resource == name));
            // The node continues to offer a slice that it offers already, even if another was reserved earlier.
            let offered = of_name.clone().find(|slice| is_in(slice, SliceState::Ready));
            offered.or_else(|| of_name.next()).and_then(|slice| slice.reservation)
        };
        names.filter_map(first_of).map(|r| r.uid.clone()).filter(|first| first != uid).collect()
    }
}

#[cfg(test)]
#[path = "blocking_tests.rs"]
mod tests;
