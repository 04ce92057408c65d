//! What the nodes' agents report over their connections, and what was asked of them.
//!
//! The copy is the truth as far as the agent has told. Proposals that are not answered are laid over it, so that nobody else is
//! offered their places. A node whose agent is not connected has none, and counts as full.

use super::{ClusterIndex, IndexedNode, Released, Why};
use crate::ask::Ask;
use crate::tentative::KindChoice;
use kerf_core::contract::{AssignedSlice, AssignmentDocument, GpuNodeSpec, GpuNodeStatus, SliceStatus};
use kerf_core::ledger::{
    self, Change, Limits, NodeState, Order, OrderKind, PodSlices, Promisee, Proposal, reserved,
};
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::Refusal;
use std::collections::BTreeSet;
use std::time::Instant;

/// What is known of a node by its agent's connection.
#[derive(Debug, Default)]
pub(super) struct NodeCopy {
    /// The connection's number; `None` once it has ended.
    connection: Option<u64>,
    /// What the agent has reported. Its status is in the [`IndexedNode`] instead while there is one.
    state: NodeState,
    /// Whether it reports what cannot be read.
    is_unreadable: bool,
    /// Whether it is late with an answer.
    is_silent: bool,
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
    /// Forgets what a leader has asked of the agent.
    pub fn forget_orders(&mut self) {
        self.proposals.clear();
        self.releasing.clear();
    }

    /// How many proposals are not answered.
    pub fn unanswered(&self) -> usize {
        self.proposals.len()
    }

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
    /// A node's agent has reported a change over its connection of this number. The first one of a connection has everything.
    pub fn show_copy(&mut self, name: &NodeName, connection: u64, change: Change) {
        self.begin_copy(name, connection);
        self.update_copy(name, |copy| change.apply(&mut copy.state));
        self.release_left(name);
    }

    /// A node's agent reports what cannot be read: the node counts as full until the connection ends.
    pub fn show_unreadable_copy(&mut self, name: &NodeName, connection: u64) {
        self.begin_copy(name, connection);
        self.update_copy(name, |copy| {
            (copy.state, copy.is_unreadable) = (NodeState::default(), true);
        });
    }

    /// The agents of these nodes are late with an answer, and no others. They accept nothing until they have answered. Gives the nodes
    /// for which that has changed, and whether their agents are late now.
    pub fn show_silent(&mut self, silent: &BTreeSet<NodeName>) -> Vec<(NodeName, bool)> {
        let changed = self.copies.iter().filter(|(name, copy)| copy.is_silent != silent.contains(*name));
        let changed: Vec<_> = changed.map(|(name, copy)| (name.clone(), !copy.is_silent)).collect();
        for (name, is_silent) in &changed {
            self.update_copy(name, |copy| copy.is_silent = *is_silent);
        }
        changed
    }

    /// The connection of this number has ended.
    pub fn end_copy(&mut self, name: &NodeName, connection: u64) {
        if self.connection_of(name) == Some(connection) {
            self.update_copy(name, |copy| *copy = NodeCopy::default());
            self.copies.remove(name);
        }
    }

    /// What was received over an earlier connection does not count any more.
    fn begin_copy(&mut self, name: &NodeName, connection: u64) {
        if self.connection_of(name) != Some(connection) {
            let copy = NodeCopy { connection: Some(connection), ..NodeCopy::default() };
            self.copies.insert(name.clone(), copy);
            if let Some(node) = self.nodes.get_mut(name) {
                node.status = GpuNodeStatus::default();
            }
        }
    }

    /// The number of the connection of a node's agent, if it has one.
    #[must_use]
    pub fn connection_of(&self, name: &NodeName) -> Option<u64> {
        self.copies.get(name)?.connection
    }

    /// What a node's copy shows of a pod's slices. Reservations that nobody uses make way for them.
    pub fn shown_slices(&mut self, uid: &PodUid, name: &NodeName) -> PodSlices<'_> {
        self.clear_the_way(uid, name);
        self.nodes.get(name).map(|node| PodSlices::of(&node.status, uid)).unwrap_or_default()
    }

    /// What a pod is assigned on a node by its reservation there, if it has one.
    #[must_use]
    pub fn assignment_of(&self, uid: &PodUid, name: &NodeName) -> Option<AssignmentDocument> {
        let spec = &self.nodes.get(name)?.spec;
        let slices = reserved(spec, uid).filter_map(|slice| {
            Some(AssignedSlice {
                container: slice.reservation.as_ref()?.container.clone(),
                id: slice.id.clone(),
                gpu: slice.gpu.clone(),
                shape: slice.shape,
            })
        });
        let slices: Vec<AssignedSlice> = slices.collect();
        let passed = self.passed.get(uid).cloned().unwrap_or_default();
        // The connection may just have ended, and the copy with it.
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

    /// A proposal is about to be sent. Its places count as taken until it is [`answered`](Self::answered).
    pub(super) fn note_proposal(&mut self, name: &NodeName, proposed: Proposed) {
        self.update_copy(name, |copy| copy.proposals.push(proposed));
    }

    /// The agent has answered the proposal for a pod over this connection, or will never receive it. What it has done is in the copy.
    pub fn answered(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        drop(self.take_proposed(uid, name, connection));
    }

    /// The agent has rejected the proposal for a pod: the pod is expected on the node until it is fitted once more, unless it was free
    /// to go elsewhere.
    pub fn rejected(&mut self, uid: &PodUid, name: &NodeName, connection: u64, now: Instant) {
        let is_free = self.copies.get(name).is_some_and(|copy| copy.releasing.contains(uid));
        let proposed = self.take_proposed(uid, name, connection);
        if let Some(Proposed { proposal, ask, choice }) = proposed.filter(|_| !is_free) {
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
        // One that the agent has accepted was not laid over the copy any more.
        if !node.is_some_and(|node| node.reports_reservation(uid)) {
            self.update_copy(name, |_| ());
        }
        taken
    }

    /// Orders the release of a pod's reservation; whether it is one that may be released by what is known.
    pub(super) fn release(&mut self, uid: &PodUid, why: Why) -> bool {
        self.places.get(uid).cloned().is_some_and(|name| self.release_on(&name, uid, why))
    }

    fn release_on(&mut self, name: &NodeName, uid: &PodUid, why: Why) -> bool {
        let (epoch, Some(connection)) = (self.epoch, self.connection_of(name)) else { return false };
        if !self.lead.leads {
            return false;
        }
        // The agent sees itself how a pod ends that runs on its node.
        let may_go = |slice: &SliceStatus| {
            let reservation = slice.reservation.as_ref().filter(|r| r.uid == *uid && !r.binding)?;
            slice.holder.is_none().then(|| reservation.key())
        };
        let Some(node) = self.nodes.get(name) else { return false };
        let found = if node.reports_reservation(uid) {
            node.status.slices.iter().find_map(may_go)
        } else {
            // The agent has the proposal already, or gets it before the release.
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

    /// Releases what pods have left here that could not be released when they did: their Binding was under way, or the agent was not
    /// connected. To be called when the agent has told more.
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

    /// The agent has answered the release of a pod's reservation over this connection, or will never receive it.
    pub fn release_answered(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        if self.connection_of(name) == Some(connection) {
            self.update_copy(name, |copy| {
                copy.releasing.remove(uid);
            });
        }
    }

    /// The agent has rejected the release of a pod's reservation, because of a Binding. If its copy shows none any more, it is ordered
    /// again.
    pub fn release_rejected(&mut self, uid: &PodUid, name: &NodeName, connection: u64) {
        self.release_answered(uid, name, connection);
        self.release_left(name);
    }

    /// The GpuNode has come into being, or its object is another one: its agent may have reported already.
    pub(super) fn lay_copy(&mut self, name: &NodeName) {
        if let (Some(copy), Some(node)) = (self.copies.get_mut(name), self.nodes.get_mut(name)) {
            node.status = std::mem::take(&mut copy.state.status);
            self.update_copy(name, |_| ());
        }
    }

    /// The GpuNode is gone and takes the status with it, which its agent will not report again.
    pub(super) fn keep_copy(&mut self, name: &NodeName, node: &mut IndexedNode) {
        if let Some(copy) = self.copies.get_mut(name) {
            copy.state.status = std::mem::take(&mut node.status);
        }
    }

    /// Forgets what this leader has asked of the agents.
    pub(super) fn forget_orders(&mut self) {
        let names: Vec<NodeName> = self.copies.keys().cloned().collect();
        for name in &names {
            self.update_copy(name, NodeCopy::forget_orders);
        }
    }

    /// Changes a node's copy, and what follows from it. The status is in the node, if there is one, but while `act` runs.
    fn update_copy(&mut self, name: &NodeName, act: impl FnOnce(&mut NodeCopy)) {
        let Some(copy) = self.copies.get_mut(name) else { return };
        let Some(node) = self.nodes.get_mut(name) else { return act(copy) };
        copy.state.status = std::mem::take(&mut node.status);
        act(copy);
        (node.spec, node.agent) = (copy.desired(), copy.accepts());
        node.status = std::mem::take(&mut copy.state.status);
        self.settle(name);
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
