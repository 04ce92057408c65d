//! A leader's state of the nodes: a copy of what each agent reports, and the proposals without an answer.

use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, RequestDocument};
use kerf_core::inventory::NodeInventory;
use kerf_core::ledger::{Change, NodeState, Owner, Proposal, apply, reserved};
use kerf_core::names::PodUid;
use kerf_core::packing::{Fleet, fit};
use std::collections::{BTreeMap, BTreeSet};

/// The copies of all connected nodes.
#[derive(Debug, Clone, Default)]
pub struct Copies(pub BTreeMap<usize, NodeCopy>);

#[derive(Debug, Clone, Default)]
pub struct NodeCopy {
    pub connection: u64,
    pub state: NodeState,
    pub proposals: Vec<Proposal>,
    pub releasing: BTreeSet<PodUid>,
}

impl NodeCopy {
    /// What the node should have once all proposals are accepted.
    fn desired(&self) -> GpuNodeSpec {
        let mut desired = self.state.desired();
        for proposal in &self.proposals {
            if reserved(&desired, &proposal.owner.uid).next().is_none() {
                desired = apply(&desired, proposal, 0);
            }
        }
        desired
    }

    fn has_place(&self, uid: &PodUid) -> bool {
        !self.releasing.contains(uid) && reserved(&self.desired(), uid).next().is_some()
    }
}

impl Copies {
    /// Starts the copy of an agent that has connected.
    pub fn connected(&mut self, node: usize, connection: u64, state: Change) {
        self.0.insert(node, NodeCopy { connection, ..NodeCopy::default() });
        self.changed(node, state);
    }

    pub fn changed(&mut self, node: usize, change: Change) {
        if let Some(copy) = self.0.get_mut(&node) {
            change.apply(&mut copy.state);
        }
    }

    pub fn disconnected(&mut self, node: usize) {
        self.0.remove(&node);
    }

    pub fn connection(&self, node: usize) -> Option<u64> {
        Some(self.0.get(&node)?.connection)
    }

    pub fn status(&self, node: usize) -> Option<&GpuNodeStatus> {
        Some(&self.0.get(&node)?.state.status)
    }

    /// Proposes places for a pod on a node, which count as taken until the agent has answered. A pod that has a
    /// reservation there keeps it.
    pub fn propose(
        &mut self,
        owner: &Owner,
        request: &RequestDocument,
        node: usize,
        fleet: &Fleet,
    ) -> Option<Proposal> {
        let is_elsewhere = |(at, copy): (&usize, &NodeCopy)| *at != node && copy.has_place(&owner.uid);
        if self.0.iter().any(is_elsewhere) {
            return None;
        }
        let copy = self.0.get_mut(&node)?;
        if let Some(known) = copy.proposals.iter().find(|known| known.owner == *owner) {
            return Some(known.clone());
        }
        if copy.has_place(&owner.uid) {
            return Some(Proposal::renewal(owner.clone(), &copy.state.status));
        }
        let desired = copy.desired();
        if copy.state.closed.is_some() {
            return None;
        }
        let inventory = NodeInventory::from_spec(&desired, &copy.state.status);
        let fit = fit(&inventory, request, fleet).ok()?;
        let proposal = Proposal::from_fit(owner.clone(), fit);
        copy.proposals.push(proposal.clone());
        Some(proposal)
    }

    /// Forgets the proposal or the release of a pod, because the agent has answered it or will never read it.
    pub fn answered(&mut self, uid: &PodUid, node: usize) {
        if let Some(copy) = self.0.get_mut(&node) {
            copy.proposals.retain(|proposal| proposal.owner.uid != *uid);
            copy.releasing.remove(uid);
        }
    }

    /// Whether a pod has a reservation on a node that may be released, as far as is known.
    pub fn may_release(&self, uid: &PodUid, node: usize) -> bool {
        self.0.get(&node).is_some_and(|copy| {
            let slices = copy.state.status.slices.iter();
            let mut its = slices.filter(|slice| slice.reservation.as_ref().is_some_and(|r| r.uid == *uid));
            !copy.releasing.contains(uid)
                && its.any(|slice| {
                    slice.holder.is_none() && slice.reservation.as_ref().is_some_and(|r| !r.binding)
                })
        })
    }

    pub fn releasing(&mut self, uid: &PodUid, node: usize) {
        if let Some(copy) = self.0.get_mut(&node) {
            copy.releasing.insert(uid.clone());
        }
    }

    /// Forgets all proposals when a term ends or begins.
    pub fn forget_proposals(&mut self) {
        self.0.values_mut().for_each(|copy| copy.proposals.clear());
    }
}
