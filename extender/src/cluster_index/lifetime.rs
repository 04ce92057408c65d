//! Unused reservations: how long they stay, and when they are released.
//!
//! The scheduler does not report when it drops a pod, so a reservation expires some time after the pod's last bind
//! ended. The scheduler may still come back with the pod, because a plugin may reject the pod each time after kerf's
//! filter. A bind that follows a filter and finds no reservation makes a new one.

use super::leading::Lead;
use super::{ClusterIndex, Why};
use hashbrown::{HashMap, HashSet};
use kerf_core::names::{NodeName, PodUid};
use std::time::{Duration, Instant};

/// How long reservations and requests live without a sign of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long a reservation of a pod that is not bound stays after the pod's last bind.
    pub reservation: Duration,
    /// How long a request may live in the API server after its sender has stopped waiting for it.
    pub request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reservation: Duration::from_mins(1), request: super::UNCERTAIN }
    }
}

/// The last uses of reservations.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// The number of open binds of each pod.
    binds: HashMap<PodUid, u32>,
    /// When each pod's last bind ended. For a reservation of a former leader: when it was first seen.
    last: HashMap<PodUid, Instant>,
    /// Pods that this replica bound, even if an old event of the watch shows them unbound.
    bound: HashSet<PodUid>,
}

impl Uses {
    pub fn note_bound(&mut self, uid: &PodUid) {
        self.bound.insert(uid.clone());
    }
}

impl ClusterIndex {
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Begins a bind of the pod. Each call is followed by one of [`end_bind`](Self::end_bind).
    pub fn begin_bind(&mut self, uid: &PodUid) {
        *self.lead.uses.binds.entry(uid.clone()).or_default() += 1;
    }

    /// Ends a bind of the pod, whatever its result. Binds that are blocked by the pod's reservation check again.
    pub fn end_bind(&mut self, uid: &PodUid, node: &NodeName, now: Instant) {
        if let Some(count) = self.lead.uses.binds.get_mut(uid) {
            *count -= 1;
            if *count == 0 {
                self.lead.uses.binds.remove(uid);
            }
        }
        if self.place_of(uid).is_some() {
            self.lead.uses.last.insert(uid.clone(), now);
            if self.is_unused(uid) {
                self.effects.changed.insert(node.clone());
            }
        }
    }

    /// Whether a bind of the pod is under way.
    #[must_use]
    pub fn has_open_bind(&self, uid: &PodUid) -> bool {
        self.lead.uses.binds.contains_key(uid)
    }

    /// Runs what is due by time alone. The caller runs it about once a second.
    pub fn tick(&mut self, now: Instant) {
        if self.is_listed() {
            self.reopen_statics(now);
            self.look_into_posts(now);
            self.expire_reservations(now);
        }
    }

    fn expire_reservations(&mut self, now: Instant) {
        let Self { places, statics, pods, lead: Lead { uses, .. }, .. } = self;
        // `bound` may have pods without a reservation, so that it need not be gone through every second.
        if uses.bound.len() > 2 * places.count() + 1000 {
            uses.bound.retain(|uid| places.has(uid) || statics.promised(uid).is_some());
        }
        let unbound = places.unbound(|uid| pods.get(uid).is_some_and(|pod| pod.node.is_some()));
        let reserved = unbound.chain(statics.promises().map(|(uid, _)| uid));
        let reserved: HashSet<PodUid> = reserved.cloned().collect();
        uses.last.retain(|uid, _| reserved.contains(uid));
        for uid in reserved {
            let since = *self.lead.uses.last.entry(uid.clone()).or_insert(now);
            if now.saturating_duration_since(since) >= self.limits.reservation && self.is_unused(&uid) {
                self.release_unused(&uid, Why::Expired);
            }
        }
    }

    /// Whether nothing shows that a reservation will be needed soon: no bind is under way, and no Binding was made or
    /// may still be made. A pod that the index does not have may be bound, so its reservation counts as used.
    pub(super) fn is_unused(&self, uid: &PodUid) -> bool {
        let is_unbound = match self.pods.get(uid) {
            Some(pod) => pod.node.is_none(),
            // Pods that ask NVIDIA's device plugin and not kerf are seen only once they are bound.
            None => self.statics.promised(uid).is_some(),
        };
        is_unbound && !self.has_open_bind(uid) && !self.lead.uses.bound.contains(uid) && !self.is_posting(uid)
    }

    pub(super) fn release_unused(&mut self, uid: &PodUid, why: Why) {
        let promised =
            self.statics.promised(uid).map(|promised| (promised.key.clone(), promised.node.clone()));
        if let Some((pod, node)) = promised.filter(|_| self.release_static(uid)) {
            tracing::info!(%pod, %uid, %node, %why, "released");
        } else {
            self.release(uid, why);
        }
    }
}

#[cfg(test)]
#[path = "lifetime_tests.rs"]
mod tests;
