//! The copies of the nodes' ledgers, which agents report over their connections, and the orders without an answer.
//!
//! A copy is true as of the agent's last report. Unanswered proposals are laid over it, so that their places are not
//! offered twice. A node whose agent is not connected has no copy, and counts as full.

use super::{ClusterIndex, IndexedNode, Released, Why};
use crate::ask::Ask;
use crate::assumed::KindChoice;
use kerf_core::contract::{AssignedSlice, AssignmentDocument, Condition, GpuNodeSpec, SliceStatus};
use kerf_core::ledger::{
    self, Change, Limits, NodeState, Order, OrderKind, OwnerInEpoch, PodSlices, Proposal, reserved,
};
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::Refusal;
use std::collections::BTreeSet;
use std::time::Instant;

/// What is known of a node by its agent's connection.
#[derive(Debug, Default)]
pub(super) struct NodeCopy {
    /// The connection's id; `None` once it has ended.
    connection: Option<u64>,
    /// What the agent has reported. While there is an [`IndexedNode`], status and policy are stored there instead.
    state: NodeState,
    /// Whether its last report could not be read.
    is_unreadable: bool,
    /// Whether it is late with an answer.
    is_silent: bool,
    /// Proposals without an answer, in the order in which they were made.
    proposals: Vec<Proposed>,
    /// Pods whose release was ordered and has no answer. These pods may go elsewhere, but no other pod gets their
    /// slices yet.
    pub releasing: BTreeSet<PodUid>,
}

/// A proposal that was sent, or is about to be.
#[derive(Debug)]
pub(super) struct Proposed {
    pub proposal: Proposal,
    /// The pod's request, and the kinds that are to serve it.
    pub ask: Ask,
    pub choice: KindChoice,
}

/// An order whose answer no bind waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOrder {
    pub node: NodeName,
    /// The id of the connection that the order is for.
    pub connection: u64,
    pub order: Order,
}

impl NodeCopy {
    /// Forgets the orders of a leader.
    pub fn forget_orders(&mut self) {
        self.proposals.clear();
        self.releasing.clear();
    }

    /// The number of proposals without an answer.
    pub fn unanswered(&self) -> usize {
        self.proposals.len()
    }

    /// The slices that the node should have once all proposals are accepted; `None` if there is none.
    fn proposed(&self) -> Option<GpuNodeSpec> {
        let mut desired = (!self.proposals.is_empty()).then(|| self.state.desired())?;
        for Proposed { proposal, .. } in &self.proposals {
            // The copy may already have the reservation although the answer has not been read.
            if reserved(&desired, &proposal.owner.uid).next().is_none() {
                desired = ledger::apply(&desired, proposal, 0);
            }
        }
        Some(desired)
    }

    /// Moves status and policy between the copy and the node.
    fn swap(&mut self, node: &mut IndexedNode) {
        std::mem::swap(&mut self.state.status, &mut node.status);
        std::mem::swap(&mut self.state.policy, &mut node.policy);
    }

    /// Whether the agent accepts reservations.
    fn accepts(&self) -> Result<(), Refusal> {
        match self.connection {
            None => Err(Refusal::NotConnected),
            Some(_) if self.is_unreadable => Err(Refusal::UnreadableStatus),
            Some(_) if self.is_silent || self.state.closed.is_some() => Err(Refusal::AgentNotReady),
            Some(_) => Ok(()),
        }
    }
}

impl ClusterIndex {
    /// Applies a change that a node's agent has reported over this connection. The first change of a connection is the
    /// whole state.
    pub fn show_copy(&mut self, name: &NodeName, connection: u64, mut change: Change) {
        self.begin_copy(name, connection);
        self.reduce(&mut change);
        self.update_copy(name, |copy| change.apply(&mut copy.state));
        self.release_left(name);
    }

    /// Drops from a change what takes memory in vain: names that are stored already, and the texts of conditions, which
    /// only readers of `GpuNodes` need.
    fn reduce(&self, change: &mut Change) {
        for reservation in change.slices.iter_mut().filter_map(|slice| slice.reservation.as_mut()) {
            if let Some((uid, _)) = self.pods.get_key_value(&reservation.uid) {
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
    pub fn show_unreadable_copy(&mut self, name: &NodeName, connection: u64) {
        self.begin_copy(name, connection);
        self.update_copy(name, |copy| {
            (copy.state, copy.is_unreadable) = (NodeState::default(), true);
        });
    }

    /// Sets which agents are late with an answer: exactly these. They get no reservations until they have answered.
    /// Returns the nodes for which that has changed, and whether their agents are late now.
    pub fn show_silent(&mut self, silent: &BTreeSet<NodeName>) -> Vec<(NodeName, bool)> {
        let changed = self.copies.iter().filter(|(name, copy)| copy.is_silent != silent.contains(*name));
        let changed: Vec<_> = changed.map(|(name, copy)| (name.clone(), !copy.is_silent)).collect();
        for (name, is_silent) in &changed {
            self.update_copy(name, |copy| copy.is_silent = *is_silent);
        }
        changed
    }

    /// Drops the copy if this is the connection that has ended.
    pub fn end_copy(&mut self, name: &NodeName, connection: u64) {
        if self.connection_of(name) == Some(connection) {
            self.update_copy(name, |copy| *copy = NodeCopy::default());
            self.copies.remove(name);
        }
    }

    /// Starts an empty copy if the connection is a new one, because what came over an earlier connection no longer
    /// counts.
    fn begin_copy(&mut self, name: &NodeName, connection: u64) {
        if self.connection_of(name) != Some(connection) {
            let copy = NodeCopy { connection: Some(connection), ..NodeCopy::default() };
            self.copies.insert(name.clone(), copy);
            if let Some(node) = self.nodes.get_mut(name) {
                (node.status, node.policy) = Default::default();
            }
        }
    }

    /// The id of the connection of a node's agent, if it is connected.
    #[must_use]
    pub fn connection_of(&self, name: &NodeName) -> Option<u64> {
        self.copies.get(name)?.connection
    }

    /// The state of a pod's slices in the node's copy. Unused reservations that block them are released.
    pub fn shown_slices(&mut self, uid: &PodUid, name: &NodeName) -> PodSlices<'_> {
        self.clear_the_way(uid, name);
        self.nodes.get(name).map(|node| PodSlices::of(&node.status, uid)).unwrap_or_default()
    }

    /// The assignment of a pod by its reservation on a node, if it has one.
    #[must_use]
    pub fn assignment_of(&self, uid: &PodUid, name: &NodeName) -> Option<AssignmentDocument> {
        let slices = self.nodes.get(name)?.reserved(uid).filter_map(|slice| {
            Some(AssignedSlice {
                container: slice.reservation?.container.to_owned(),
                id: slice.id.clone(),
                gpu: slice.gpu.clone(),
                shape: slice.shape,
            })
        });
        let slices: Vec<AssignedSlice> = slices.collect();
        let passed = self.lead.passed.get(uid).cloned().unwrap_or_default();
        // The slices are empty if the connection has just ended, because the copy is then gone.
        (!slices.is_empty()).then(|| AssignmentDocument { version: 1, slices, devices: Vec::new(), passed })
    }

    /// How long reservations and requests live.
    #[must_use]
    pub fn ledger_limits(&self) -> Limits {
        let super::Limits { reservation, request } = self.limits;
        Limits { reservation, request, ..Limits::default() }
    }

    /// The proposal for a pod that its node's agent has not answered yet.
    pub(super) fn unanswered(&self, uid: &PodUid, name: &NodeName) -> Option<&Proposal> {
        let proposals = self.copies.get(name)?.proposals.iter().map(|proposed| &proposed.proposal);
        proposals.into_iter().find(|proposal| proposal.owner.uid == *uid)
    }

    /// Records a proposal that is about to be sent. Its places count as taken until it is [`answered`](Self::answered).
    pub(super) fn note_proposal(&mut self, name: &NodeName, proposed: Proposed) {
        self.update_copy(name, |copy| copy.proposals.push(proposed));
    }

    /// Removes the proposal for a pod after the agent's answer, or if the agent will never receive it. The copy already
    /// shows the result.
    pub fn answered(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        drop(self.take_proposed(uid, name, connection));
    }

    /// Handles the rejection of a pod's proposal. The pod stays assumed on the node until it is filtered again, unless
    /// it may go elsewhere.
    pub fn rejected(&mut self, uid: &PodUid, name: &NodeName, connection: u64, now: Instant) {
        let is_free = self.copies.get(name).is_some_and(|copy| copy.releasing.contains(uid));
        let proposed = self.take_proposed(uid, name, connection);
        if let Some(Proposed { proposal, ask, choice }) = proposed.filter(|_| !is_free) {
            let pod = OwnerInEpoch { uid: uid.clone(), key: proposal.owner.key, epoch: self.epoch() };
            self.expect(pod, ask, choice, name, now);
        }
    }

    fn take_proposed(&mut self, uid: &PodUid, name: &NodeName, connection: u64) -> Option<Proposed> {
        if self.connection_of(name) != Some(connection) {
            return None;
        }
        let (copy, node) = (self.copies.get_mut(name)?, self.nodes.get(name));
        let mut proposed = copy.proposals.extract_if(.., |proposed| proposed.proposal.owner.uid == *uid);
        let taken = proposed.next();
        drop(proposed);
        // An accepted proposal was no longer laid over the copy, so its removal changes nothing.
        if !node.is_some_and(|node| node.reports_reservation(uid)) {
            self.update_copy(name, |_| ());
        }
        taken
    }

    /// Orders the release of a pod's reservation. Returns false if it may not be released, as far as is known.
    pub(super) fn release(&mut self, uid: &PodUid, why: Why) -> bool {
        self.places.get(uid).cloned().is_some_and(|name| self.release_on(&name, uid, why))
    }

    fn release_on(&mut self, name: &NodeName, uid: &PodUid, why: Why) -> bool {
        let (epoch, Some(connection)) = (self.epoch(), self.connection_of(name)) else { return false };
        if !self.leadership.leads() {
            return false;
        }
        // The agent itself sees the end of a pod that runs on its node, so a held or marked slice needs no order.
        let may_go = |slice: &SliceStatus| {
            let reservation = slice.reservation.as_ref().filter(|r| r.uid == *uid && !r.binding)?;
            slice.holder.is_none().then(|| reservation.key())
        };
        let Some(node) = self.nodes.get(name) else { return false };
        let found = if node.reports_reservation(uid) {
            node.status.slices.iter().find_map(may_go)
        } else {
            // The agent has the proposal already, or receives it before the release, because orders stay in sequence.
            self.unanswered(uid, name).map(|proposal| proposal.owner.key.clone())
        };
        let Some(pod) = found else { return false };
        let kind = OrderKind::Release { uid: uid.clone(), why: why.to_string() };
        let order = NodeOrder { node: name.clone(), connection, order: Order { epoch, kind } };
        self.effects.orders.push(order);
        self.update_copy(name, |copy| copy.releasing.extend([uid.clone()]));
        self.effects.released.push(Released { uid: uid.clone(), pod, node: name.clone(), why });
        true
    }

    /// Releases the reservations of pods that have left, as far as that was impossible when they left: because their
    /// Binding was under way, or the agent was not connected. Called after each of the agent's reports.
    pub(super) fn release_left(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.get(name) else { return };
        let why = |uid: &PodUid| match self.pods.get(uid) {
            Some(pod) if pod.ended => Some(Why::Ended),
            Some(pod) => pod.node.as_ref().filter(|node| *node != name).map(|_| Why::BoundElsewhere),
            None => node.left.contains_key(uid).then_some(Why::Gone),
        };
        let left = node.promised.iter().filter_map(|uid| Some((uid.clone(), why(uid)?)));
        for (uid, why) in left.collect::<Vec<_>>() {
            self.release_on(name, &uid, why);
        }
    }

    /// Handles the agent's answer to the release of a pod's reservation, or that the agent will never receive the
    /// order.
    pub fn release_answered(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        if self.connection_of(name) == Some(connection) {
            self.update_copy(name, |copy| {
                copy.releasing.remove(uid);
            });
        }
    }

    /// Handles the rejection of a release because of a Binding. If the copy no longer shows a Binding, the release is
    /// ordered again.
    pub fn release_rejected(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        self.release_answered(uid, name, connection);
        self.release_left(name);
    }

    /// Moves the copy's status into a new GpuNode's node, because its agent may have reported before the object was
    /// seen.
    pub(super) fn lay_copy(&mut self, name: &NodeName) {
        if let (Some(copy), Some(node)) = (self.copies.get_mut(name), self.nodes.get_mut(name)) {
            copy.swap(node);
            self.update_copy(name, |_| ());
        }
    }

    /// Moves the status back into the copy when the GpuNode is deleted, because the agent will not report it again.
    pub(super) fn keep_copy(&mut self, name: &NodeName, node: &mut IndexedNode) {
        if let Some(copy) = self.copies.get_mut(name) {
            copy.swap(node);
        }
    }

    /// Forgets all orders that this leader has sent to agents.
    pub(super) fn forget_orders(&mut self) {
        let names: Vec<NodeName> = self.copies.keys().cloned().collect();
        for name in &names {
            self.update_copy(name, NodeCopy::forget_orders);
        }
    }

    /// Changes a node's copy and updates what depends on it. Status and policy are in the node, if there is one, except while
    /// `act` runs.
    fn update_copy(&mut self, name: &NodeName, act: impl FnOnce(&mut NodeCopy)) {
        let Some(copy) = self.copies.get_mut(name) else { return };
        let Some(node) = self.nodes.get_mut(name) else { return act(copy) };
        copy.swap(node);
        act(copy);
        (node.proposed, node.agent) = (copy.proposed(), copy.accepts());
        copy.swap(node);
        self.settle(name);
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
