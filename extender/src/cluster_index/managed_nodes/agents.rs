//! The copies of the nodes' ledgers, which agents report over their connections, and the orders without an answer.
//!
//! A copy is true as of the agent's last report. Unanswered proposals are laid over it, so that their places are not
//! offered twice. A node whose agent is not connected has no copy, and counts as full.

use super::IndexedNode;
use crate::objects::ask::Ask;
use hashbrown::HashMap;
use kerf_core::contract::{GpuNodeSpec, SliceStatus};
use kerf_core::ledger::{self, Change, NodeState, Order, Proposal, reserved};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use std::collections::BTreeSet;

/// What is known of a node by its agent's connection.
#[derive(Debug, Default)]
pub(crate) struct NodeCopy {
    /// The connection's id; `None` once it has ended.
    connection: Option<u64>,
    /// What the agent has reported. While there is an [`IndexedNode`], status and policy are stored there instead.
    state: NodeState,
    is_unreadable: bool,
    /// Whether it is late with an answer.
    is_unresponsive: bool,
    /// Proposals without an answer, in the order in which they were made.
    proposals: Vec<Proposed>,
    /// Pods whose release was ordered and has no answer. These pods may go elsewhere, but no other pod gets their
    /// slices yet.
    releasing: BTreeSet<PodUid>,
}

/// A proposal that was sent, or is about to be.
#[derive(Debug)]
pub(crate) struct Proposed {
    pub proposal: Proposal,
    /// The pod's request.
    pub ask: Ask,
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
    pub fn apply(&mut self, change: Change) {
        change.apply(&mut self.state);
    }

    /// Counts the node as full until the connection ends, because the agent's report cannot be read.
    pub fn set_unreadable(&mut self) {
        (self.state, self.is_unreadable) = (NodeState::default(), true);
    }

    pub fn set_unresponsive(&mut self, is_unresponsive: bool) {
        self.is_unresponsive = is_unresponsive;
    }

    pub fn connection(&self) -> Option<u64> {
        self.connection
    }

    /// Records a proposal that is about to be sent. Its places count as taken until it is answered.
    pub fn propose(&mut self, proposed: Proposed) {
        self.proposals.push(proposed);
    }

    /// The proposal for a pod that the agent has not answered yet.
    pub fn proposal(&self, uid: &PodUid) -> Option<&Proposal> {
        self.proposals.iter().map(|proposed| &proposed.proposal).find(|proposal| proposal.owner.uid == *uid)
    }

    #[cfg(test)]
    pub fn first_proposal_mut(&mut self) -> &mut Proposal {
        &mut self.proposals[0].proposal
    }

    pub fn take_proposed(&mut self, uid: &PodUid) -> Option<Proposed> {
        self.proposals.extract_if(.., |proposed| proposed.proposal.owner.uid == *uid).next()
    }

    pub fn proposal_count(&self) -> usize {
        self.proposals.len()
    }

    pub fn is_releasing(&self, uid: &PodUid) -> bool {
        self.releasing.contains(uid)
    }

    pub fn set_releasing(&mut self, uid: &PodUid, is_releasing: bool) {
        if is_releasing {
            self.releasing.insert(uid.clone());
        } else {
            self.releasing.remove(uid);
        }
    }

    /// The pod of a reservation that may be released, as far as is known.
    pub fn releasable(&self, node: &IndexedNode, uid: &PodUid) -> Option<PodKey> {
        // The agent itself sees the end of a pod that runs on its node, so a held or marked slice needs no order.
        let may_go = |slice: &SliceStatus| {
            let reservation = slice.reservation.as_ref().filter(|r| r.uid == *uid && !r.binding)?;
            slice.holder.is_none().then(|| reservation.key())
        };
        if node.reports_reservation(uid) {
            return node.status.slices.iter().find_map(may_go);
        }
        // The agent has the proposal already, or receives it before the release, because orders stay in sequence.
        self.proposal(uid).map(|proposal| proposal.owner.key.clone())
    }

    /// Forgets the orders of a leader.
    pub fn forget_orders(&mut self) {
        self.proposals.clear();
        self.releasing.clear();
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
    pub fn swap(&mut self, node: &mut IndexedNode) {
        std::mem::swap(&mut self.state.status, &mut node.status);
        std::mem::swap(&mut self.state.policy, &mut node.policy);
    }

    /// Moves status and policy into the node, with what follows from the copy.
    pub fn fill(&mut self, node: &mut IndexedNode) {
        (node.proposed, node.agent) = (self.proposed(), self.accepts());
        self.swap(node);
    }

    fn accepts(&self) -> Result<(), Refusal> {
        match self.connection {
            None => Err(Refusal::NotConnected),
            Some(_) if self.is_unreadable => Err(Refusal::UnreadableStatus),
            Some(_) if self.is_unresponsive || self.state.closed.is_some() => Err(Refusal::AgentNotReady),
            Some(_) => Ok(()),
        }
    }
}

/// The copies of all nodes whose agents are connected.
#[derive(Debug, Default)]
pub(crate) struct Agents(HashMap<NodeName, NodeCopy>);

impl Agents {
    pub fn get(&self, name: &NodeName) -> Option<&NodeCopy> {
        self.0.get(name)
    }

    pub fn get_mut(&mut self, name: &NodeName) -> Option<&mut NodeCopy> {
        self.0.get_mut(name)
    }

    pub fn connection_of(&self, name: &NodeName) -> Option<u64> {
        self.0.get(name)?.connection
    }

    /// Starts an empty copy if the connection is a new one, because what came over an earlier connection no longer
    /// counts. Returns whether it is.
    pub fn connect(&mut self, name: &NodeName, connection: u64) -> bool {
        let is_new = self.connection_of(name) != Some(connection);
        if is_new {
            let copy = NodeCopy { connection: Some(connection), ..NodeCopy::default() };
            self.0.insert(name.clone(), copy);
        }
        is_new
    }

    pub fn remove(&mut self, name: &NodeName) {
        self.0.remove(name);
    }

    pub fn names(&self) -> Vec<NodeName> {
        self.0.keys().cloned().collect()
    }

    /// The nodes whose agents began or ceased to be late with an answer, and whether they are late now.
    pub fn changed(&self, unresponsive: &BTreeSet<NodeName>) -> Vec<(NodeName, bool)> {
        let changed =
            self.0.iter().filter(|(name, copy)| copy.is_unresponsive != unresponsive.contains(*name));
        changed.map(|(name, copy)| (name.clone(), !copy.is_unresponsive)).collect()
    }

    pub fn proposal_count(&self) -> usize {
        self.0.values().map(NodeCopy::proposal_count).sum()
    }
}
