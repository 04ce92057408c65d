//! Which static nodes are closed to pods.

use crate::leader::Former;
use hashbrown::HashSet;
use kerf_core::names::NodeName;
use kerf_core::packing::Refusal;
use std::time::{Duration, Instant};

/// What is known of the former leader.
#[derive(Debug, Default)]
struct Predecessor {
    /// Since when it has sent nothing. It may have Bindings under way, so that all nodes are closed. `None` if it
    /// released the Lease, and for a first leader.
    unresponsive_since: Option<Instant>,
    /// True if there was no Lease, so that only the ConfigMap can show whether there was a former leader.
    is_doubtful: bool,
}

#[derive(Debug, Default)]
pub(super) struct ClosedNodes {
    /// Nodes that are closed because they are about to be changed.
    changing: HashSet<NodeName>,
    /// True until it is known which nodes a former leader has begun to change: all nodes are closed.
    are_changes_unknown: bool,
    /// True while what pods hold may be older than this term: all nodes are closed.
    are_unread: bool,
    predecessor: Predecessor,
}

impl ClosedNodes {
    /// Why a node is closed, if it is.
    pub fn check(&self, node: &str, is_changing: bool) -> Result<(), Refusal> {
        if self.wait_for_predecessor() {
            return Err(Refusal::LeaderChanged);
        }
        if is_changing || self.are_changes_unknown || self.changing.contains(node) {
            return Err(Refusal::LayoutChanging);
        }
        Ok(())
    }

    /// Whether all nodes are closed because of a former leader.
    pub fn wait_for_predecessor(&self) -> bool {
        self.may_have_bindings_of_predecessor() || self.are_unread
    }

    /// Whether a former leader's Bindings may be under way.
    pub fn may_have_bindings_of_predecessor(&self) -> bool {
        self.predecessor.unresponsive_since.is_some()
    }

    pub fn close(&mut self, node: &NodeName) {
        self.changing.insert(node.clone());
    }

    /// Opens the closed nodes, except for these. Returns the opened ones.
    pub fn open(&mut self, stays_closed: impl Fn(&NodeName) -> bool) -> Vec<NodeName> {
        self.changing.extract_if(|node| !stays_closed(node)).collect()
    }

    pub fn set_changes_unknown(&mut self, are_unknown: bool) {
        self.are_changes_unknown = are_unknown;
    }

    pub fn set_unread(&mut self, are_unread: bool) {
        self.are_unread = are_unread;
    }

    pub fn are_unread(&self) -> bool {
        self.are_unread
    }

    /// Records how the former leader ended, and since when it has sent nothing.
    pub fn succeed(&mut self, former: Former, since: Instant) {
        let unresponsive_since = (former != Former::GaveBack).then_some(since);
        self.predecessor = Predecessor { unresponsive_since, is_doubtful: former == Former::Unknown };
    }

    /// No record shows a former leader, so a missing Lease was never made.
    pub fn no_leader_before(&mut self) {
        if self.predecessor.is_doubtful {
            self.predecessor = Predecessor::default();
        }
    }

    /// Opens the nodes once none of the former leader's Bindings can be made any more, because the leader has sent
    /// nothing for long enough. Returns whether it did.
    pub fn reopen(&mut self, now: Instant, request_limit: Duration) -> bool {
        let is_over = |since| now.saturating_duration_since(since) >= request_limit;
        let is_due = self.predecessor.unresponsive_since.is_some_and(is_over);
        if is_due {
            self.predecessor = Predecessor::default();
        }
        is_due
    }
}
