//! Decides what is offered to the kubelet, and for which pods.

use super::{Node, NodePod};
use kerf_core::contract::{GpuNodeStatus, WantedSlice};
use kerf_core::names::{DeviceId, PodUid};
use kerf_core::offer::{ExistingSlice, MissingSlice, Offer, offer};
use std::collections::{BTreeMap, BTreeSet};

impl Node {
    /// The offer for these existing slices, of which some are not served.
    pub(super) fn offered(&self, existing: &mut [ExistingSlice], unserved: &BTreeSet<DeviceId>) -> Offer {
        for slice in existing.iter_mut() {
            slice.served = !unserved.contains(&slice.device);
        }
        let missing: Vec<_> = self.desired().iter().filter_map(|wanted| self.missing(wanted)).collect();
        offer(existing, &missing, &self.bindings)
    }

    /// A reserved slice that cannot be offered and that its pod never had.
    fn missing(&self, wanted: &WantedSlice) -> Option<MissingSlice> {
        let reservation = wanted.reservation.clone()?;
        let is_missing = self.device_of(wanted).is_none_or(|device| self.account.is_doubted(&device));
        let model = self.model_of(&wanted.gpu);
        is_missing.then_some(MissingSlice { shape: wanted.shape, model, reservation })
    }

    pub(super) fn note_bindings(&mut self) {
        let reserved = self.ledger.desired().slices.iter().filter_map(|wanted| wanted.reservation.as_ref());
        let pods = self.pods.as_ref();
        self.bindings
            .take_pods(reserved.map(|r| &r.uid), |uid| pods.is_some_and(|pods| pods.contains_key(uid)));
    }

    /// Notes the pods whose slices are all ready in the reported status. A pod that holds some of its slices is bound,
    /// and the API server shows it.
    pub(super) fn note_ready(&mut self, status: &GpuNodeStatus) {
        let ready = status.slices.iter().filter(|slice| slice.holder.is_none());
        let ready: BTreeMap<_, _> =
            ready.filter_map(|s| Some((s.id.as_ref()?, s.ready_for.as_ref()?))).collect();
        let reserved = self.ledger.desired().slices.iter().filter_map(|wanted| {
            let uid = &wanted.reservation.as_ref()?.uid;
            Some((uid, ready.get(&wanted.id) == Some(&uid)))
        });
        self.bindings.take_status(reserved);
    }

    /// Whether another pod holds the device than the one that has reserved its slice.
    pub(super) fn is_anothers(&self, wanted: &WantedSlice, device: &DeviceId) -> bool {
        let holder = self.account.holder(device).map(|held| held.holder.key());
        wanted.reservation.as_ref().is_some_and(|r| holder.is_some_and(|holder| holder != r.key()))
    }

    /// Whether the pod with the reservation holds the device; for an unreserved slice, whether the kubelet keeps it for
    /// its container.
    pub(super) fn is_settled(&self, wanted: Option<&WantedSlice>, device: &DeviceId) -> bool {
        let is_anothers = wanted.is_some_and(|wanted| self.is_anothers(wanted, device));
        self.is_shown(device) && !is_anothers
    }

    /// Whether the kubelet keeps the device for the container that has it.
    pub(super) fn is_shown(&self, device: &DeviceId) -> bool {
        let is_admitted = |uid: &PodUid| self.pods.as_ref()?.get(uid).map(|pod: &NodePod| pod.admitted);
        self.account.is_settled(device, |uid| is_admitted(uid).unwrap_or_default())
    }
}
