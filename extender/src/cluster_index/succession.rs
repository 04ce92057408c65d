//! What a new leader leaves alone for a while, because its predecessor may have a Binding under way.
//!
//! A leader that vanished may have sent a Binding that the API server has not decided yet. On a managed node its reservation is
//! in `GpuNode.spec`: the new leader keeps it as it keeps those of its own Bindings without an answer. Static nodes have no such
//! record, so nothing is promised there until no request of the predecessor can live any more.

use super::posting::Post;
use super::{ClusterIndex, IndexedNode};
use crate::leader::Former;
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::time::Instant;

/// What is known of the leader before.
#[derive(Debug, Default)]
pub(super) struct Predecessor {
    /// Since when it has sent nothing; `None` for one that gave the Lease back, and for a first leader.
    silent_since: Option<Instant>,
    /// Whether there was none unless something else than the Lease tells of it.
    is_doubtful: bool,
}

impl ClusterIndex {
    /// This leader follows one that ended like that, and that has sent nothing since then. To be called before anything is listed.
    pub fn succeed(&mut self, former: Former, since: Instant) {
        let vanished = former != Former::GaveBack;
        self.predecessor =
            Predecessor { silent_since: vanished.then_some(since), is_doubtful: former == Former::Unknown };
        self.statics.set_waiting(vanished);
    }

    /// Nothing tells of a leader before this one: a Lease that is not there was never made.
    pub(super) fn nobody_led_before(&mut self) {
        if self.predecessor.is_doubtful {
            self.predecessor = Predecessor::default();
            self.statics.set_waiting(false);
        }
    }

    /// Everything is listed. The reservations that a vanished predecessor left may be those of Bindings under way.
    pub fn inherit(&mut self) {
        let Some(until) = self.predecessor.silent_since else { return };
        let is_unbound = |uid: &PodUid| self.pods.get(uid).is_some_and(|pod| pod.node.is_none());
        let keys = |node: &IndexedNode| -> Vec<(PodUid, PodKey)> {
            let slices = node.working().into_iter().flat_map(|spec| &spec.slices);
            let reserved = slices.filter_map(|slice| slice.reservation.as_ref());
            reserved.filter(|r| is_unbound(&r.uid)).map(|r| (r.uid.clone(), r.key())).collect()
        };
        let left: Vec<_> = self.nodes.values().flat_map(keys).collect();
        for (uid, key) in left {
            self.posting.entry(uid).or_insert_with(|| Post::new(key)).send(until);
        }
    }

    /// Lets pods come to static nodes once no Binding of the predecessor can be made any more.
    pub(super) fn reopen_statics(&mut self, now: Instant) {
        let Some(since) = self.predecessor.silent_since else { return };
        if now.saturating_duration_since(since) >= self.limits.request {
            tracing::info!(
                "no Binding of the former leader can be under way: pods come to static nodes again"
            );
            self.predecessor = Predecessor::default();
            self.statics.set_waiting(false);
            let all: Vec<NodeName> = self.statics.names().cloned().collect();
            self.statics_changed(all);
        }
    }

    /// Whether a successor may go on at once: no Binding of this leader, or of one before it, may still be made.
    #[must_use]
    pub fn leaves_nothing_under_way(&self) -> bool {
        self.posting.is_empty() && self.predecessor.silent_since.is_none()
    }
}

#[cfg(test)]
#[path = "succession_tests.rs"]
mod tests;
