//! Proposals to agents that keep their node's ledger: the places of a pod, chosen by the copy and all that is proposed already.

use super::copy::Proposed;
use super::leaving::charge;
use super::{ClusterIndex, IndexedNode, Unreservable};
use crate::ask::Ask;
use crate::tentative::KindChoice;
use kerf_core::contract::WantedSlice;
use kerf_core::inventory::NodeInventory;
use kerf_core::ledger::{Owner, Proposal, reserved};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Placed, Refusal, Source, fit};

impl ClusterIndex {
    /// Chooses places for a pod on a node whose agent keeps its ledger, as [`reserve`](Self::reserve) does on others. They count as
    /// taken until the agent has answered. A pod that has a reservation there, or a proposal, keeps it.
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
        let spec = node.working().ok_or(Refusal::UnreadableSpec)?;
        let status = node.status.as_ref().map_err(|refusal| *refusal)?;
        let document = ask.document.planned(&choice.plan);
        let fit = fit(&NodeInventory::of(spec, status), &document, &self.fleet)?;
        self.may_hold(&ask, charge(&fit))?;
        let proposal = Proposal::from_fit(owner, fit);
        let KindChoice { passed, .. } = choice.clone();
        self.note_proposal(name, Proposed { proposal: proposal.clone(), ask: ask.clone(), choice });
        self.note_choice(uid, &ask, passed);
        Ok(proposal)
    }

    /// The places that a pod has already.
    fn renewal(&self, owner: Owner, name: &NodeName) -> Proposal {
        let spec = self.nodes.get(name).and_then(IndexedNode::working);
        let place = |slice: &WantedSlice| {
            let reservation = slice.reservation.as_ref()?;
            Some(Placed {
                container: reservation.container.clone(),
                resource: reservation.resource,
                alone: reservation.alone,
                gpu: slice.gpu.clone(),
                shape: slice.shape,
                source: Source::Idle(slice.id.clone()),
            })
        };
        let slices = spec.into_iter().flat_map(|spec| reserved(spec, &owner.uid));
        let places = slices.filter_map(place).collect();
        Proposal { owner, places }
    }
}
