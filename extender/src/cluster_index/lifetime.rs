//! Unused reservations: how long they stay, and when they are released.
//!
//! The scheduler does not report when it drops a pod, so a reservation expires some time after the pod's last bind
//! ended. The scheduler may still come back with the pod, because a plugin may reject the pod each time after kerf's
//! filter. A bind that follows a filter and finds no reservation makes a new one.

use super::effects::ReleaseReason;
use super::node_updates::NodeUpdates;
use super::reserving::Reserving;
use kerf_core::names::{NodeName, PodUid};
use std::time::Instant;

impl Reserving<'_> {
    /// Ends a bind of the pod, whatever its result. Binds that are blocked by the pod's reservation check again.
    pub fn end_bind(&mut self, uid: &PodUid, node: &NodeName, now: Instant) {
        self.bindings.end(uid);
        if self.place_of(uid).is_some() {
            self.bindings.set_last_use(uid, now);
            if self.is_unused(uid) {
                self.updates.effects.changed.insert(node.clone());
            }
        }
    }

    /// Releases the reservations that were not used for their lifetime.
    pub(super) fn expire(&mut self, now: Instant) {
        let NodeUpdates { nodes, pods, .. } = &mut self.updates;
        self.bindings.forget_bound(nodes.managed.reservations().count(), |uid| nodes.is_reserved(uid));
        let unbound = nodes.unbound_pods(|uid| pods.is_bound(uid)).cloned().collect();
        for uid in self.bindings.expired(unbound, now) {
            if self.is_unused(&uid) {
                self.release_unused(&uid, ReleaseReason::Expired);
            }
        }
    }

    /// Whether nothing shows that a reservation will be needed soon: no bind is under way, and no Binding was made or
    /// may still be made. A pod that the index does not have may be bound, so its reservation counts as used.
    pub(super) fn is_unused(&self, uid: &PodUid) -> bool {
        let is_unbound = match self.updates.pods.get(uid) {
            Some(pod) => pod.node.is_none(),
            // Pods that ask NVIDIA's device plugin and not kerf are seen only once they are bound.
            None => self.updates.nodes.has_devices_for(uid),
        };
        is_unbound && !self.bindings.are_in_use(uid)
    }

    pub(super) fn release_unused(&mut self, uid: &PodUid, reason: ReleaseReason) {
        if let Some((pod, node)) = self.updates.release_devices(uid) {
            tracing::info!(%pod, %uid, %node, why = %reason, "released");
        } else {
            self.updates.release(uid, reason);
        }
    }
}

#[cfg(test)]
#[path = "lifetime_tests.rs"]
mod tests;
