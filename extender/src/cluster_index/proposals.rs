//! Proposals to nodes' agents: a pod's places, chosen by the copy and all unanswered proposals.

use super::managed_nodes::{IndexedNode, Proposed, charge};
use super::reserving::{Reserving, Unreservable};
use crate::assumed::KindChoice;
use crate::objects::ask::Ask;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::ledger::{Owner, Proposal};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Fleet, Refusal, fit};

impl Reserving<'_> {
    /// Chooses places for a pod on a node. They count as taken until the node's agent has answered.
    ///
    /// A pod that already has a reservation or a proposal there keeps it. `ask` is the request that the caller has read
    /// from the API server, if it did. The kinds are those that a filter last chose; without a filter, the best that the
    /// node has. If none of the chosen kinds is left, the pod is refused and has to be filtered again.
    pub fn propose(
        &mut self,
        uid: &PodUid,
        key: &PodKey,
        name: &NodeName,
        ask: Option<Ask>,
    ) -> Result<Proposal, Unreservable> {
        if let Some(known) = self.updates.nodes.managed.copy(name).and_then(|copy| copy.proposal(uid)) {
            return Ok(known.clone());
        }
        let owner = Owner { uid: uid.clone(), key: key.clone() };
        match self.place_of(uid) {
            Some(place) if place == name => return Ok(self.renewal(owner, name)),
            Some(_) => return Err(Refusal::ReservedElsewhere.into()),
            None => {}
        }
        let (ask, choice) = self.ask_of(uid, ask, None)?;
        let node = self.updates.nodes.managed.get(name).ok_or(Refusal::NoAgent)?;
        node.serving()?;
        let fleet = self.updates.nodes.managed.fleet();
        let choice = choice.or_else(|| self.bindings.choice(uid).cloned());
        let choice = choice.map_or_else(|| best_kinds(node, &ask, fleet), Ok)?;
        let document = ask.document.planned(&choice.plan);
        let fit = fit(&node.shown_inventory(), &document, fleet)?;
        self.updates.quotas.admit_reservation(&ask, charge(&fit))?;
        let proposal = Proposal::from_fit(owner, fit);
        let proposed = Proposed { proposal: proposal.clone(), ask: ask.clone() };
        self.updates.update_copy(name, |copy| copy.propose(proposed));
        self.bindings.set_choice(uid, choice);
        self.learn(uid, &ask);
        Ok(proposal)
    }

    /// Proposes the places that a pod already has, by the agent's report alone. Another pod's proposal may count on one
    /// that this pod is about to lose, and an order that named only a part of them could get it only that part.
    pub(super) fn renewal(&self, owner: Owner, name: &NodeName) -> Proposal {
        let nothing = GpuNodeStatus::default();
        Proposal::renewal(owner, self.updates.nodes.managed.get(name).map_or(&nothing, IndexedNode::status))
    }

    /// Counts a pod's slice as demand. Pods whose name fixes the kind were counted when they came.
    fn learn(&mut self, uid: &PodUid, ask: &Ask) {
        let slice = self.updates.nodes.managed.slice_of_any_kind(uid, ask);
        if let Some((slice, pod)) = slice.zip(self.updates.pods.get(uid)) {
            self.updates.nodes.managed.learn(slice, pod.template.compute);
        }
    }
}

/// The best kinds that a node has for a pod that no filter has sent there.
fn best_kinds(node: &IndexedNode, ask: &Ask, fleet: &Fleet) -> Result<KindChoice, Refusal> {
    if !ask.document.containers.iter().any(|container| container.resource.is_neutral()) {
        return Ok(KindChoice::default());
    }
    let fit = fit(&node.shown_inventory(), &ask.document, fleet)?;
    Ok(fit.rank.plan(&ask.document).unwrap_or_default().into())
}
