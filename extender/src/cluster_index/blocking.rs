//! Releases an unused reservation that blocks another pod.
//!
//! Of the slices under one resource name a node offers that of the first reservation that is not allocated yet, and
//! slices of equal worth (`kerf_core::offer`). The other reservations wait until that pod is bound and has its device.
//! A pod in the scheduler's backoff may come late or never, so its reservation makes way for a pod whose bind is open.
//! Its slice stays, idle.

use super::{ClusterIndex, IndexedNode, Why};
use kerf_core::contract::{SliceState, WantedSlice};
use kerf_core::names::{NodeName, PodUid};

impl ClusterIndex {
    /// Releases the unused reservations that block the pod's slices on this node. If two pods block each other, the one
    /// with an open bind goes on. If both have one, the bind that ends last goes on.
    pub(super) fn clear_the_way(&mut self, uid: &PodUid, name: &NodeName) {
        for blocking in self.blocking(uid, name) {
            if self.is_unused(&blocking) {
                self.release_unused(&blocking, Why::Blocking);
            }
        }
    }

    /// The pods whose reservations block the pod's slices, as the agent reports them.
    fn blocking(&self, uid: &PodUid, name: &NodeName) -> Vec<PodUid> {
        let Some(node) = self.nodes.get(name) else { return Vec::new() };
        let IndexedNode { spec, status, .. } = node;
        let observed = |slice: &WantedSlice| status.slice(&slice.id);
        let is_waiting =
            |slice: &&WantedSlice| observed(slice).is_some_and(|s| s.state == SliceState::Waiting);
        let of_pod = spec.slices.iter().filter(|s| s.reservation.as_ref().is_some_and(|r| r.uid == *uid));
        let names = of_pod.filter(is_waiting).filter_map(|s| Some(s.reservation.as_ref()?.resource));
        let first_of = |name| {
            let free = spec.slices.iter().filter(|s| observed(s).is_none_or(|s| s.holder.is_none()));
            let mut of_name = free.filter(|s| s.reservation.as_ref().is_some_and(|r| r.resource == name));
            // The node continues to offer a slice that it offers already, even if another was reserved earlier.
            let is_offered =
                |slice: &&WantedSlice| observed(slice).is_some_and(|s| s.state == SliceState::Ready);
            let first = of_name.clone().find(is_offered).or_else(|| of_name.next());
            first.and_then(|slice| slice.reservation.as_ref())
        };
        names.filter_map(first_of).map(|r| r.uid.clone()).filter(|first| first != uid).collect()
    }
}

#[cfg(test)]
#[path = "blocking_tests.rs"]
mod tests;
