//! What a new leader leaves untouched for a while, because its predecessor may have a Binding under way.
//!
//! A leader that vanished may have sent a Binding that the API server has not processed yet. On a managed node the
//! agent has a mark for the Binding, and keeps the reservation. Static nodes have no such record, so nothing is
//! reserved there until no request of the predecessor can live any longer.

use super::ClusterIndex;
use crate::leader::Former;
use kerf_core::names::NodeName;
use std::time::Instant;

/// What is known of the former leader.
#[derive(Debug, Default)]
pub(super) struct Predecessor {
    /// Since when it has sent nothing. `None` if it released the Lease, and for a first leader.
    silent_since: Option<Instant>,
    /// True if there was no Lease, so that only the ConfigMap can show whether there was a former leader.
    is_doubtful: bool,
}

impl ClusterIndex {
    /// Records how the former leader ended, and since when it has sent nothing. Called before requests are answered.
    pub fn succeed(&mut self, former: Former, since: Instant) {
        let vanished = former != Former::GaveBack;
        self.lead.predecessor =
            Predecessor { silent_since: vanished.then_some(since), is_doubtful: former == Former::Unknown };
        self.statics.set_waiting(vanished);
    }

    /// No record shows a former leader, so a missing Lease was never made.
    pub(super) fn nobody_led_before(&mut self) {
        if self.lead.predecessor.is_doubtful {
            self.lead.predecessor = Predecessor::default();
            self.statics.set_waiting(false);
        }
    }

    /// Opens static nodes once no Binding of the predecessor can be made any longer.
    pub(super) fn reopen_statics(&mut self, now: Instant) {
        let Some(since) = self.lead.predecessor.silent_since else { return };
        if now.saturating_duration_since(since) >= self.limits.request {
            tracing::info!(
                "no Binding of the former leader can be under way: pods come to static nodes again"
            );
            self.lead.predecessor = Predecessor::default();
            self.statics.set_waiting(false);
            let all: Vec<NodeName> = self.statics.names().cloned().collect();
            self.statics_changed(all);
        }
    }

    /// Whether a successor may go on at once: no Binding of this leader, or of one before it, may still be made that no agent knows of.
    /// Where there is no static node a leader that vanished has left none, and its successor need not keep the Lease from the next one.
    #[must_use]
    pub fn leaves_nothing_under_way(&self) -> bool {
        let may_have_statics = !self.is_listed() || self.statics.names().any(|name| self.is_static(name));
        self.lead.pending_bindings.is_empty()
            && !(may_have_statics && self.lead.predecessor.silent_since.is_some())
    }
}

#[cfg(test)]
#[path = "succession_tests.rs"]
mod tests;
