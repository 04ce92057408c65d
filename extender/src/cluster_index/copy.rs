//! Nodes whose agents keep their ledger: a copy of what each reports over its connection, and what was asked of it.
//!
//! The copy is the truth as far as the agent has told. Proposals that are not answered are laid over it, so that nobody else is
//! offered their places. A node has its copy from its agent's first Hello until this leader's term ends; while the agent is not
//! connected the copy is empty, and the node counts as full.

use super::spec_state::SpecState;
use super::{ClusterIndex, IndexedNode, Released, Why, promises};
use crate::ask::Ask;
use crate::tentative::KindChoice;
use kerf_core::contract::{AssignmentDocument, GpuNodeSpec, GpuNodeStatus, SliceStatus};
use kerf_core::ledger::{
    self, Change, Limits, NodeState, Order, OrderKind, PodSlices, Promisee, Proposal, reserved,
};
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::collections::BTreeSet;
use std::time::Instant;

/// What is known of a node by its agent's connection.
#[derive(Debug, Default)]
pub(super) struct NodeCopy {
    /// The connection's number; `None` once it has ended.
    connection: Option<u64>,
    /// What the agent has reported. Its status is in the [`IndexedNode`] instead while there is one.
    state: NodeState,
    /// Proposals that are not answered, in the order in which they were made.
    proposals: Vec<Proposed>,
    /// Pods whose release was ordered and is not answered. They are free to go elsewhere, and nobody gets their slices yet.
    pub releasing: BTreeSet<PodUid>,
}

/// A proposal that was sent, or is about to be.
#[derive(Debug)]
pub(super) struct Proposed {
    pub proposal: Proposal,
    /// What the pod asks for, and by which kinds it is to be served.
    pub ask: Ask,
    pub choice: KindChoice,
}

/// An order whose answer no bind waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOrder {
    /// The node.
    pub node: NodeName,
    /// The number of the connection that it is for.
    pub connection: u64,
    /// The order.
    pub order: Order,
}

impl NodeCopy {
    /// The slices that the node should have once all proposals are accepted.
    fn desired(&self) -> GpuNodeSpec {
        let mut desired = self.state.desired();
        for Proposed { proposal, .. } in &self.proposals {
            // The copy may have the reservation before the answer is read.
            if reserved(&desired, &proposal.owner.uid).next().is_none() {
                desired = ledger::apply(&desired, proposal, 0);
            }
        }
        desired
    }
}

impl ClusterIndex {
    /// A node's agent has reported a change over its connection of this number. The first one of a connection has everything.
    pub fn show_copy(&mut self, name: &NodeName, connection: u64, change: Change) {
        self.begin_copy(name, connection);
        self.update_copy(name, |copy| change.apply(&mut copy.state));
    }

    /// A node's agent reports what cannot be read: the node counts as full until the connection ends.
    pub fn show_unreadable_copy(&mut self, name: &NodeName, connection: u64) {
        self.begin_copy(name, connection);
        self.update_copy(name, |copy| copy.state = NodeState::default());
    }

    /// The connection of this number has ended.
    pub fn end_copy(&mut self, name: &NodeName, connection: u64) {
        if self.connection_of(name) == Some(connection) {
            self.update_copy(name, |copy| *copy = NodeCopy::default());
        }
    }

    /// What was received over an earlier connection does not count any more.
    fn begin_copy(&mut self, name: &NodeName, connection: u64) {
        let copy = self.copies.entry(name.clone()).or_default();
        if copy.connection != Some(connection) {
            *copy = NodeCopy { connection: Some(connection), ..NodeCopy::default() };
            if let Some(node) = self.nodes.get_mut(name) {
                node.status = Ok(GpuNodeStatus::default());
            }
        }
    }

    /// Whether the node's agent keeps its ledger, or has kept it when it was connected last.
    #[must_use]
    pub fn keeps_ledger(&self, name: &NodeName) -> bool {
        self.copies.contains_key(name)
    }

    /// The number of the connection of a node's agent, if it has one.
    #[must_use]
    pub fn connection_of(&self, name: &NodeName) -> Option<u64> {
        self.copies.get(name)?.connection
    }

    /// What a node's copy shows of a pod's slices. Reservations that nobody uses make way for them.
    pub fn shown_slices(&mut self, uid: &PodUid, name: &NodeName) -> PodSlices<'_> {
        self.clear_the_way(uid, name);
        let status = self.nodes.get(name).and_then(|node| node.status.as_ref().ok());
        status.map(|status| PodSlices::of(status, uid)).unwrap_or_default()
    }

    /// What a pod is assigned on a node by its reservation there.
    #[must_use]
    pub fn assignment_of(&self, uid: &PodUid, name: &NodeName) -> Option<AssignmentDocument> {
        let spec = self.nodes.get(name)?.working()?;
        let passed = self.passed.get(uid).cloned().unwrap_or_default();
        Some(promises::assignment(spec, uid, passed))
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

    /// A proposal is about to be sent. Its places count as taken until it is [`answered`](Self::answered).
    pub(super) fn note_proposal(&mut self, name: &NodeName, proposed: Proposed) {
        self.update_copy(name, |copy| copy.proposals.push(proposed));
    }

    /// The agent has answered the proposal or the release of a pod over this connection, or will never receive it. What it has
    /// done is in the copy.
    pub fn answered(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        drop(self.take_proposed(uid, name, connection));
    }

    /// The agent has rejected the proposal for a pod: the pod is expected on the node until it is fitted once more.
    pub fn rejected(&mut self, uid: &PodUid, name: &NodeName, connection: u64, now: Instant) {
        if let Some(Proposed { proposal, ask, choice }) = self.take_proposed(uid, name, connection) {
            let pod = Promisee { uid: uid.clone(), key: proposal.owner.key, epoch: self.epoch };
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
        let was_releasing = copy.releasing.remove(uid);
        // One that the agent has accepted was not laid over the copy any more.
        if was_releasing || !node.is_some_and(|node| node.reports_reservation(uid)) {
            self.update_copy(name, |_| ());
        }
        taken
    }

    /// Orders the release of a pod's reservation; whether it is one that may be released by what is known.
    pub(super) fn order_release(&mut self, uid: &PodUid, pod: PodKey, name: &NodeName, why: Why) -> bool {
        let (epoch, Some(connection)) = (self.epoch, self.connection_of(name)) else { return false };
        // The agent sees itself how a pod ends that runs on its node.
        let may_go = |slice: &&SliceStatus| {
            let reservation = slice.reservation.as_ref().filter(|r| r.uid == *uid);
            reservation.is_some_and(|reservation| !reservation.binding) && slice.holder.is_none()
        };
        let status = self.nodes.get(name).and_then(|node| node.status.as_ref().ok());
        let is_free = status.is_some_and(|status| status.slices.iter().any(|slice| may_go(&slice)));
        let is_ordered = self.copies.get(name).is_some_and(|copy| copy.releasing.contains(uid));
        if !is_free || is_ordered {
            return is_ordered;
        }
        let kind = OrderKind::Release { uid: uid.clone(), why: why.to_string() };
        let order = NodeOrder { node: name.clone(), connection, order: Order { epoch, kind } };
        self.effects.orders.push(order);
        self.effects.released.push(Released { uid: uid.clone(), pod, node: name.clone(), why });
        self.update_copy(name, |copy| copy.releasing.extend([uid.clone()]));
        true
    }

    /// The node has come into being, or its object is another one: it is served by its copy, where there is one.
    pub(super) fn lay_copy(&mut self, name: &NodeName) {
        if self.keeps_ledger(name) {
            self.update_copy(name, |_| ());
        }
    }

    /// The GpuNode is gone and takes the status with it, which its agent will not report again.
    pub(super) fn keep_copy(&mut self, name: &NodeName, node: &mut IndexedNode) {
        if let Some(copy) = self.copies.get_mut(name).filter(|_| node.keeps_ledger) {
            copy.state.status = node.take_status();
        }
    }

    /// Changes a node's copy, and what follows from it. The status is in the node, if there is one, but while `act` runs.
    fn update_copy(&mut self, name: &NodeName, act: impl FnOnce(&mut NodeCopy)) {
        let Some(copy) = self.copies.get_mut(name) else { return };
        let Some(node) = self.nodes.get_mut(name) else { return act(copy) };
        if std::mem::replace(&mut node.keeps_ledger, true) {
            copy.state.status = node.take_status();
        }
        act(copy);
        node.spec = Ok(SpecState::of(copy.desired()));
        node.status = Ok(std::mem::take(&mut copy.state.status));
        node.is_closed = copy.state.closed.is_some();
        self.settle(name);
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
