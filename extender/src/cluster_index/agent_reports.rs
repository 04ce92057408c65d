//! What agents report of their nodes over their connections, and their answers to orders.

use super::managed_nodes::NodeCopy;
use super::node_updates::NodeUpdates;
use kerf_core::contract::Condition;
use kerf_core::ledger::Change;
use kerf_core::names::{NodeName, PodUid};
use std::collections::BTreeSet;

/// The nodes, for reports of their agents.
#[derive(Debug)]
pub struct AgentReports<'i>(NodeUpdates<'i>);

impl<'i> NodeUpdates<'i> {
    #[must_use]
    pub fn agents(self) -> AgentReports<'i> {
        AgentReports(self)
    }
}

impl AgentReports<'_> {
    /// Applies a change that a node's agent has reported over this connection. The first change of a connection is the
    /// whole state.
    pub fn report(&mut self, name: &NodeName, connection: u64, mut change: Change) {
        self.0.nodes.managed.connect(name, connection);
        self.reduce(&mut change);
        self.0.update_copy(name, |copy| copy.apply(change));
        self.0.release_left(name);
    }

    /// Drops the parts of a change that would waste memory: names that are stored already, and the texts of conditions,
    /// which only readers of `GpuNodes` need.
    fn reduce(&self, change: &mut Change) {
        for reservation in change.slices.iter_mut().filter_map(|slice| slice.reservation.as_mut()) {
            if let Some(uid) = self.0.pods.stored_uid(&reservation.uid) {
                reservation.uid = uid.clone();
            }
        }
        for condition in change.conditions.iter_mut().flatten() {
            let Condition { kind: _, status: _, reason, message, last_transition_time } = condition;
            for text in [reason, message, last_transition_time] {
                *text = String::new();
            }
        }
    }

    /// Marks a node whose agent's report cannot be read: it counts as full until the connection ends.
    pub fn report_unreadable(&mut self, name: &NodeName, connection: u64) {
        self.0.nodes.managed.connect(name, connection);
        self.0.update_copy(name, NodeCopy::set_unreadable);
    }

    /// Sets which agents are late with an answer: exactly these. They get no reservations until they have answered.
    /// Returns the nodes for which that has changed, and whether their agents are late now.
    pub fn set_unresponsive(&mut self, unresponsive: &BTreeSet<NodeName>) -> Vec<(NodeName, bool)> {
        let changed = self.0.nodes.managed.changed_agents(unresponsive);
        for (name, is_unresponsive) in &changed {
            self.0.update_copy(name, |copy| copy.set_unresponsive(*is_unresponsive));
        }
        changed
    }

    /// Drops the copy if this is the connection that has ended.
    pub fn disconnect(&mut self, name: &NodeName, connection: u64) {
        if self.0.is_connected_by(name, connection) && self.0.nodes.managed.disconnect(name) {
            self.0.settle(name);
        }
    }

    /// Removes the proposal for a pod after the agent's answer, or if the agent will never receive it. The copy already
    /// shows the result.
    pub fn answer(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        drop(self.0.take_proposed(uid, name, connection));
    }

    /// Handles the agent's answer to the release of a pod's reservation, or that the agent will never receive the
    /// order.
    pub fn answer_release(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        if self.0.is_connected_by(name, connection) {
            self.0.update_copy(name, |copy| copy.set_releasing(uid, false));
        }
    }

    /// Handles the rejection of a release because of a Binding. If the copy no longer shows a Binding, the release is
    /// ordered again.
    pub fn reject_release(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        self.answer_release(uid, name, connection);
        self.0.release_left(name);
    }
}

#[cfg(test)]
#[path = "agent_reports_tests.rs"]
mod tests;
