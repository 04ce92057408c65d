//! What is offered to the kubelet, and to which pods.

use super::{Node, NodePod};
use kerf_core::contract::{GpuNodeStatus, SliceState, WantedSlice};
use kerf_core::names::{DeviceId, PodUid};
use kerf_core::offer::{Bindings, ExistingSlice, MissingSlice, Offer, offer};
use std::collections::BTreeSet;

impl Node {
    /// The offer, for these slices that exist, of which some are not served.
    pub(super) fn offered(&mut self, existing: &mut [ExistingSlice], unserved: &BTreeSet<DeviceId>) -> Offer {
        self.note_bindings();
        existing.iter_mut().for_each(|slice| slice.served = !unserved.contains(&slice.device));
        let missing: Vec<_> = self.spec.slices.iter().filter_map(|wanted| self.missing(wanted)).collect();
        offer(existing, &missing, &self.bindings)
    }

    /// A reserved slice of which nothing can be offered.
    fn missing(&self, wanted: &WantedSlice) -> Option<MissingSlice> {
        let reservation = wanted.reservation.clone()?;
        let is_missing = self.device_of(wanted).is_none_or(|device| self.account.is_doubted(&device));
        let model = self.model_of(&wanted.gpu);
        is_missing.then_some(MissingSlice { shape: wanted.shape, model, reservation })
    }

    /// Notes which pods are bound or may be. While no spec can be read, what was known stays.
    fn note_bindings(&mut self) {
        if !self.health.spec.is_well() {
            return;
        }
        let acknowledged = |wanted: &WantedSlice, name| {
            let device = self.device_of(wanted);
            device.is_some_and(|device| {
                let is_held = self.account.held_as(&device).is_some() && !self.is_anothers(wanted, &device);
                is_held || self.advertised.is_acknowledged(name, &device)
            })
        };
        let reserved = self.spec.slices.iter().filter_map(|wanted| {
            let reservation = wanted.reservation.as_ref()?;
            Some((reservation, acknowledged(wanted, reservation.resource)))
        });
        let is_bound = |uid: &PodUid| self.pods.as_ref().is_some_and(|pods| pods.contains_key(uid));
        self.bindings = self.bindings.updated(reserved, is_bound);
    }

    /// Whether another pod has the device than has reserved its slice.
    pub(super) fn is_anothers(&self, wanted: &WantedSlice, device: &DeviceId) -> bool {
        let holder = self.account.holder(device).map(|held| held.holder.key());
        wanted.reservation.as_ref().is_some_and(|r| holder.is_some_and(|holder| holder != r.key()))
    }

    /// Whether the kubelet keeps the device for the container that has it.
    pub(super) fn is_settled(&self, device: &DeviceId) -> bool {
        let is_admitted = |uid: &PodUid| self.pods.as_ref()?.get(uid).map(|pod: &NodePod| pod.admitted);
        self.account.is_settled(device, |uid| is_admitted(uid).unwrap_or_default())
    }
}

/// What an earlier process of the agent has made possible: pods whose slices were ready, and that have not all of them yet.
pub(super) fn possible_bindings(status: &GpuNodeStatus) -> Bindings {
    let ready = status.slices.iter().filter(|slice| slice.state == SliceState::Ready);
    ready.filter_map(|slice| slice.ready_for.clone()).collect()
}
