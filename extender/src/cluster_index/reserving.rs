//! Makes reservations for pods that are being bound, and releases those that are not needed.

use super::assuming::Assuming;
use super::bindings::{Bindings, HeldUp};
use super::effects::ReleaseReason;
use super::managed_nodes::Reservations;
use super::node_updates::NodeUpdates;
use crate::assumed::{ASSUMED_TIMEOUT, AssumedPod, AssumedPods, KindChoice};
use crate::objects::ask::Ask;
use kerf_core::contract::{AssignedSlice, AssignmentDocument};
use kerf_core::ledger::{OwnerInEpoch, PodSlices, Proposal};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use std::time::Instant;

/// Why nothing can be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreservable {
    /// The node cannot serve the pod.
    Refused(Refusal),
    /// The pod's request is not known.
    UnknownPod,
}

impl From<Refusal> for Unreservable {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What a bind has to do once it has reserved.
#[derive(Debug)]
pub enum Reserved {
    /// Send this proposal to the node's agent, over the connection with this id. `None` if the agent is not connected.
    Proposed { proposal: Proposal, connection: Option<u64> },
    /// Send the Binding with this assignment.
    Assigned(AssignmentDocument),
}

/// The nodes and pods, for binds.
#[derive(Debug)]
pub struct Reserving<'i> {
    pub(super) updates: NodeUpdates<'i>,
    pub(super) bindings: &'i mut Bindings,
    pub(super) assumed: &'i mut AssumedPods,
}

impl Reserving<'_> {
    /// Reserves for a pod on a node. `ask` is the request that the caller has read from the API server, if it did.
    pub fn reserve(
        &mut self,
        uid: &PodUid,
        key: &PodKey,
        name: &NodeName,
        ask: Option<Ask>,
    ) -> Result<Reserved, Unreservable> {
        if self.updates.nodes.is_static(name) {
            return self.reserve_devices(uid, key, name, ask).map(Reserved::Assigned);
        }
        let proposal = self.propose(uid, key, name, ask)?;
        Ok(Reserved::Proposed { proposal, connection: self.updates.nodes.managed.connection_of(name) })
    }

    /// A pod's request, and the kinds that a filter chose for it. The pod is no longer assumed anywhere.
    pub(super) fn ask_of(
        &mut self,
        uid: &PodUid,
        read: Option<Ask>,
        reserved: Option<Ask>,
    ) -> Result<(Ask, Option<KindChoice>), Unreservable> {
        let assumed = self.assuming().forget(uid);
        let (assumed, choice) = assumed.map(|(_, assumed)| (assumed.ask, assumed.choice)).unzip();
        let ask = match assumed.or(read).or(reserved) {
            Some(ask) => ask,
            None => self.updates.pods.get(uid).ok_or(Unreservable::UnknownPod)?.ask()?,
        };
        Ok((ask, choice))
    }

    /// Releases a reservation that the pod cannot use, unless its Binding may have been made. Returns whether it is
    /// released.
    pub fn give_up(&mut self, uid: &PodUid) -> bool {
        !self.updates.pods.is_bound(uid)
            && !self.bindings.is_pending(uid)
            && (self.updates.release_devices(uid).is_some()
                || self.updates.release(uid, ReleaseReason::NodeUnusable))
    }

    /// Handles the rejection of a pod's proposal. The pod stays assumed on the node until it is filtered again, unless
    /// it may go elsewhere.
    pub fn reject(&mut self, uid: &PodUid, name: &NodeName, connection: u64, now: Instant) {
        let is_free = self.updates.nodes.managed.copy(name).is_some_and(|copy| copy.is_releasing(uid));
        let proposed = self.updates.take_proposed(uid, name, connection);
        if let Some(proposed) = proposed.filter(|_| !is_free) {
            let (key, epoch) = (proposed.proposal.owner.key, self.updates.leadership.epoch());
            let (pod, until) = (OwnerInEpoch { uid: uid.clone(), key, epoch }, now + ASSUMED_TIMEOUT);
            let choice = self.choice_of(uid);
            let assumed = AssumedPod { pod, ask: proposed.ask, choice, until, leaving: None, charged: None };
            self.assuming().assume(name, assumed);
        }
    }

    /// Removes the Binding with this `until`, which the API server refused. If the watch does not show the pod, its end
    /// may have come before the reservation, and then no event reports it. So the API server is asked.
    pub fn refuse_binding(&mut self, uid: &PodUid, until: Instant) {
        if !self.bindings.refuse(uid, until) {
            return;
        }
        drop(self.updates.release_devices(uid));
        if self.updates.nodes.managed.reservations().has(uid) && !self.updates.pods.contains(uid) {
            self.updates.effects.unconfirmed.insert(uid.clone());
        }
    }

    /// Handles a Binding that was not made. A pod that could have gone elsewhere is requeued.
    pub(super) fn not_bound(&mut self, uid: &PodUid) {
        let Some(pending) = self.bindings.take_pending(uid) else { return };
        tracing::info!(pod = %pending.key, %uid, "a Binding without an answer was not made");
        drop(self.updates.release_devices(uid));
        let Some(HeldUp { ask, offered }) = pending.held_up else { return };
        self.give_up(uid);
        let names: Vec<&str> = offered.iter().map(NodeName::as_str).collect();
        self.updates.unschedulable.refused(uid, &pending.key, &ask, &names, false);
        for name in &offered {
            self.updates.unschedulable.changed(name);
        }
    }

    /// The stages of pods with a reservation on a managed node.
    pub fn stages(&mut self) -> &mut Reservations {
        self.updates.nodes.managed.reservations_mut()
    }

    /// The state of a pod's slices in the node's copy. Unused reservations that block them are released.
    pub fn shown_slices(&mut self, uid: &PodUid, name: &NodeName) -> PodSlices<'_> {
        self.clear_the_way(uid, name);
        let node = self.updates.nodes.managed.get(name);
        node.map(|node| PodSlices::for_pod(node.status(), uid)).unwrap_or_default()
    }

    /// The assignment of a pod by its reservation on a node, if it has one.
    #[must_use]
    pub fn assignment_of(&self, uid: &PodUid, name: &NodeName) -> Option<AssignmentDocument> {
        let slices = self.updates.nodes.managed.get(name)?.reserved(uid).filter_map(|slice| {
            Some(AssignedSlice {
                container: slice.reservation?.container.to_owned(),
                id: slice.id.clone(),
                gpu: slice.gpu.clone(),
                shape: slice.shape,
            })
        });
        let slices: Vec<AssignedSlice> = slices.collect();
        let KindChoice { passed, .. } = self.choice_of(uid);
        // The slices are empty if the connection has just ended, because the copy is then gone.
        (!slices.is_empty()).then(|| AssignmentDocument { version: 1, slices, devices: Vec::new(), passed })
    }

    /// The kinds by which the pod was last proposed to a node.
    fn choice_of(&self, uid: &PodUid) -> KindChoice {
        self.bindings.choice(uid).cloned().unwrap_or_default()
    }

    /// The pod with this UID that has a reservation, or whose Binding was sent.
    #[must_use]
    pub fn reserved_pod(&self, uid: &PodUid) -> Option<PodKey> {
        self.updates.nodes.reserved_pod(uid).or_else(|| self.bindings.key(uid).cloned())
    }

    pub(super) fn place_of(&self, uid: &PodUid) -> Option<&NodeName> {
        self.updates.nodes.place_of(uid)
    }

    pub(super) fn assuming(&mut self) -> Assuming<'_> {
        Assuming {
            assumed: self.assumed,
            nodes: self.updates.nodes,
            quotas: self.updates.quotas,
            unschedulable: self.updates.unschedulable,
        }
    }
}

#[cfg(test)]
#[path = "pending_bindings_tests.rs"]
mod tests;
