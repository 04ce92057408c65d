//! Proposals to nodes' agents: a pod's places, chosen by the copy and all unanswered proposals.

use super::copy::Proposed;
use super::leaving::charge;
use super::{ClusterIndex, Unreservable};
use crate::ask::Ask;
use crate::assumed::KindChoice;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::ledger::{Owner, Proposal};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Refusal, fit};

impl ClusterIndex {
    /// Chooses places for a pod on a node. They count as taken until the node's agent has answered.
    ///
    /// A pod that already has a reservation or a proposal there keeps it. `ask` is the request that the caller has read
    /// from the API server, if it did. The kinds are those that a filter chose; without a filter, the best that the
    /// node has. If none of the chosen kinds is left, the pod is refused and has to be filtered again.
    pub fn propose(
        &mut self,
        uid: &PodUid,
        key: &PodKey,
        name: &NodeName,
        ask: Option<Ask>,
    ) -> Result<Proposal, Unreservable> {
        if let Some(known) = self.unanswered(uid, name) {
            return Ok(known.clone());
        }
        let owner = Owner { uid: uid.clone(), key: key.clone() };
        match self.place_of(uid) {
            Some(place) if place == name => return Ok(self.renewal(owner, name)),
            Some(_) => return Err(Refusal::ReservedElsewhere.into()),
            None => {}
        }
        let (ask, choice) = self.ask_of(uid, ask, None)?;
        let node = self.nodes.get(name).ok_or(Refusal::NoAgent)?;
        node.serving()?;
        let choice = choice.map_or_else(|| self.best_kinds(node, &ask), Ok)?;
        let document = ask.document.planned(&choice.plan);
        let fit = fit(&node.shown_inventory(), &document, &self.fleet)?;
        self.may_hold(&ask, charge(&fit))?;
        let proposal = Proposal::from_fit(owner, fit);
        let KindChoice { passed, .. } = choice.clone();
        self.note_proposal(name, Proposed { proposal: proposal.clone(), ask: ask.clone(), choice });
        self.note_choice(uid, &ask, passed);
        Ok(proposal)
    }

    /// Proposes the places that a pod already has, by the agent's report alone. Another pod's proposal may count on one
    /// that this pod is about to lose, and an order that named only a part of them could get it only that part.
    pub(super) fn renewal(&self, owner: Owner, name: &NodeName) -> Proposal {
        let nothing = GpuNodeStatus::default();
        Proposal::renewal(owner, self.nodes.get(name).map_or(&nothing, |node| &node.status))
    }
}
