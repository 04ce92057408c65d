//! Makes reservations on static nodes for pods that are being bound.

use super::super::reserving::{Reserving, Unreservable};
use super::devices::StaticReservation;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use kerf_core::contract::AssignmentDocument;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;

impl Reserving<'_> {
    /// Reserves a static node's devices for a pod that is about to be bound, and returns its assignment. A pod that
    /// already has the reservation keeps it, as long as the node has that many devices. `ask` is the request that the
    /// caller has read from the API server, if it did.
    pub(in crate::cluster_index) fn reserve_devices(
        &mut self,
        uid: &PodUid,
        key: &PodKey,
        name: &NodeName,
        ask: Option<Ask>,
    ) -> Result<AssignmentDocument, Unreservable> {
        if self.place_of(uid).is_some_and(|place| place != name) {
            return Err(Refusal::ReservedElsewhere.into());
        }
        let known = self.updates.nodes.static_nodes.reservation(uid);
        let (is_new, known) = (known.is_none(), known.and_then(|reserved| reserved.ask.clone()));
        let (ask, _) = self.ask_of(uid, ask, known)?;
        if self.updates.nodes.managed.contains(name.as_str()) {
            return Err(Refusal::NoAgent.into());
        }
        let spot = self.updates.nodes.static_nodes.place_to_reserve(name.as_str(), uid, &ask)?;
        // A reservation that the pod already has is charged already.
        if is_new {
            self.updates.quotas.admit_reservation(&ask, spot.charge)?;
        }
        let devices = self.updates.nodes.static_nodes.assigned(name.as_str(), &ask);
        let (node, key) = (name.clone(), key.clone());
        let reserved = StaticReservation { node, key, devices: spot.devices, ask: Some(ask) };
        self.updates.nodes.static_nodes.reserve(uid, reserved);
        self.updates.devices_changed(name);
        Ok(AssignmentDocument { version: 1, slices: Vec::new(), devices, passed: Vec::new() })
    }

    /// The same for a pod that asks NVIDIA's device plugin and not kerf, and gets no assignment.
    pub fn reserve_plain(&mut self, pod: &KnownPod, name: &NodeName) -> Result<(), Refusal> {
        if self.updates.nodes.managed.contains(name.as_str()) {
            return Err(Refusal::NotAdmitted);
        }
        self.updates.nodes.static_nodes.fit(name.as_str(), &pod.uid, &pod.template.devices)?;
        let (node, key) = (name.clone(), pod.key.clone());
        let devices = (*pod.template.devices).clone();
        self.updates
            .nodes
            .static_nodes
            .reserve(&pod.uid, StaticReservation { node, key, devices, ask: None });
        self.updates.devices_changed(name);
        Ok(())
    }
}
