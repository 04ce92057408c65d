//! What changes in the index when this replica begins to lead, and when it stops.
//!
//! Watches and agents feed the index for the process's life. The state that only a leader may have ends with its term
//! ([`ClusterIndex::follow`]), so that a new term begins with the cluster's state and without that of the former term.
//!
//! # What a watch was late to show
//!
//! A leader that listed everything after it had taken the Lease would see every write of its predecessor, because the
//! predecessor sends nothing after the Lease's deadline. But a follower's watch may be seconds late, so its state may
//! be older than its predecessor's last writes. For each kind of data that a decision rests on:
//!
//! - Copies of agents' ledgers: the agent has the truth. It refuses orders of a lower epoch, places that are taken,
//!   and the release of a pod whose Binding may be open.
//! - Pods with a reservation that the index does not have: they are looked up.
//! - What pods hold of static nodes, and which nodes are being changed: a device may be held by a pod that the watch
//!   has not shown. No pod is bound to a static node until Nodes and pods were listed in this term.
//! - Epochs: the Lease's own and the ConfigMap's are read in each term. Those that agents have reported are kept.
//! - CPU, memory, taints, labels and pending pods: they may be stale, because they only rank nodes and requeue pods.
//!   kube-scheduler and the agents decide.
//! - Bindings that the predecessor sent, if it vanished: the API server may not have processed one yet. On a managed
//!   node the agent has a mark for the Binding, and keeps the reservation. Static nodes have no such record, so nothing
//!   is reserved there until no request of the predecessor can live any longer.
//! - Quotas: copies have all reservations. A bound pod that the watch has not shown yet is in its node's copy, as
//!   long as the agent is connected.

use super::ClusterIndex;
use super::pod_events::PodEvents;
use crate::assumed::AssumedPods;
use crate::unschedulable::Unschedulable;

impl ClusterIndex {
    /// Whether nodes and pods have been listed once, so that filters may be answered.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        let is_awaited = self.objects.are_awaited() || self.leadership.awaits_former_epoch();
        self.nodes.managed.are_listed() && self.pods.are_listed() && !is_awaited
    }

    /// Whether a leader can answer: everything was listed, and what may not be stale was listed in this term.
    #[must_use]
    pub fn can_answer(&self) -> bool {
        self.is_listed() && !self.has_unread_static_nodes()
    }

    /// Whether there are static nodes whose Nodes and pods are still to be listed in this term.
    #[must_use]
    pub fn has_unread_static_nodes(&self) -> bool {
        self.nodes.static_nodes.are_unread() && self.nodes.has_static()
    }

    /// Begins a term in this epoch, or in one above every epoch that was seen.
    pub fn lead(&mut self, epoch: u64) {
        self.leadership.begin(epoch);
        self.nodes.static_nodes.set_unread(true);
    }

    /// Raises the epoch over the one that a former leader wrote, if any.
    pub fn rise_over(&mut self, former: Option<u64>) {
        self.effects.progress = true;
        if former.is_none() {
            self.nodes.static_nodes.no_leader_before();
        }
        self.leadership.rise_over(former);
    }

    /// Starts to answer requests, because everything is known.
    pub fn take_over(&mut self) {
        self.leadership.answer();
        self.effects.progress = true;
        self.nodes().look_up_unknown();
    }

    /// Whether a successor may go on at once: every Binding of this leader, or of one before it, that may still be made
    /// is marked at an agent. Without static nodes a leader that vanished has left no unmarked Binding, so its
    /// successor need not keep the Lease from the next leader.
    #[must_use]
    pub fn leaves_nothing_under_way(&self) -> bool {
        let may_have_static_nodes = !self.is_listed() || self.nodes.has_static();
        let is_predecessor_over = !self.nodes.static_nodes.may_have_bindings_of_predecessor();
        !self.bindings.are_pending() && (is_predecessor_over || !may_have_static_nodes)
    }

    /// Ends the term. It drops the state that only a leader may have: proposals, assumed and pending pods, and
    /// reservations on static nodes.
    pub fn follow(&mut self) {
        self.leadership.end();
        self.assumed = AssumedPods::default();
        self.unschedulable = Unschedulable::default();
        self.bindings.end_term();
        self.nodes.managed.reservations_mut().end_term();
        self.evictions.end_term();
        self.pod_events = PodEvents::default();
        let strays = self.pods.end_term();
        let changed = self.nodes.static_nodes.end_term(strays.iter());
        for uid in &strays {
            // No watch shows these pods, so their end would not be reported.
            self.remove_pod(uid);
        }
        self.nodes().nodes_changed(changed);
        self.nodes().forget_orders();
        self.take_effects();
    }
}

#[cfg(test)]
#[path = "succession_tests.rs"]
mod succession_tests;
#[cfg(test)]
#[path = "terms_tests.rs"]
mod tests;
