//! The slices in the status: the desired ones, and those that exist and are not desired.

use crate::gpu::Compute;
use crate::node::advertise::Advertised;
use crate::node::facts::Facts;
use crate::node::placement::UnwantedSlice;
use crate::node::steps::Steps;
use crate::node::{orphaned, spared};
use kerf_core::contract::{Shape, SliceState, SliceStatus, WantedSlice};
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::offer::Bindings;
use kerf_core::units::MemoryMib;
use std::collections::BTreeSet;

pub(super) struct SliceStatuses<'a> {
    pub(super) facts: &'a Facts,
    pub(super) steps: &'a Steps,
    pub(super) advertised: &'a Advertised,
    pub(super) bindings: &'a Bindings,
    /// Whether the kubelet has accepted all names. Before that it may still forget acknowledgements.
    pub(super) is_registered: bool,
    pub(super) waiting: &'a BTreeSet<SliceId>,
}

impl SliceStatuses<'_> {
    pub(super) fn all(&self) -> Vec<SliceStatus> {
        let wanted = self.facts.reservations.desired().iter().map(|wanted| self.wanted(wanted));
        let unwanted = self.facts.placement().unwanted().into_iter().map(|slice| self.unwanted(slice));
        wanted.chain(unwanted).collect()
    }

    fn wanted(&self, wanted: &WantedSlice) -> SliceStatus {
        let mut status = SliceStatus {
            id: Some(wanted.id.clone()),
            gpu: wanted.gpu.clone(),
            shape: wanted.shape,
            state: SliceState::Preparing,
            memory: self.memory(&wanted.gpu, wanted.shape),
            device: self.facts.placement().device_of(wanted),
            resource: wanted.reservation.as_ref().map(|r| r.resource),
            ready_for: None,
            holder: None,
            message: None,
            reservation: self.facts.reservations.in_status(&wanted.id),
            leaving: false,
        };
        if let Some(device) = status.device.clone() {
            self.describe_existing(&mut status, wanted, &device);
        } else {
            (status.state, status.message) = self.absence(wanted);
        }
        status
    }

    fn describe_existing(&self, status: &mut SliceStatus, wanted: &WantedSlice, device: &DeviceId) {
        // Use the known holder only: a device in doubt would take its pod's reservation along.
        let held = self.facts.account.holder(device);
        status.holder = held.map(|h| h.holder.clone());
        let is_orphaned = self.facts.occupancy().is_orphaned(device);
        let Some(reservation) = &wanted.reservation else {
            status.resource = self.facts.account.held_as(device);
            status.message = is_orphaned.then(|| orphaned::TEXT.to_owned());
            let is_held = is_orphaned || self.facts.account.is_held(device);
            status.state = if is_held { SliceState::Held } else { SliceState::Idle };
            return;
        };
        let name = reservation.resource;
        let acknowledged = self.is_registered && self.advertised.is_acknowledged(name, device);
        // The kubelet chooses which of the pod's containers gets the device.
        let by_others = held.is_some_and(|h| h.name != name || h.holder.key() != reservation.key());
        // A restarted agent treats the pods of ready slices as possibly bound.
        let ready = acknowledged && !by_others && !self.bindings.is_over(&reservation.uid);
        status.ready_for = ready.then(|| reservation.uid.clone());
        status.state = match held {
            Some(_) => SliceState::Held,
            None if is_orphaned => SliceState::Held,
            None if self.waiting.contains(&wanted.id) => SliceState::Waiting,
            None if ready => SliceState::Ready,
            None => SliceState::Preparing,
        };
        if let Some(obstruction) = self.steps.unserved(&wanted.id) {
            status.message = Some(obstruction.text.clone());
            if obstruction.is_final {
                status.state = SliceState::Failed;
            }
        }
    }

    /// The state of a desired slice that does not exist, and the reason.
    fn absence(&self, wanted: &WantedSlice) -> (SliceState, Option<String>) {
        if self.facts.is_spared(wanted) {
            return (SliceState::Held, Some(spared::TEXT.to_owned()));
        }
        if let Some(obstacle) = self.steps.obstacle(&wanted.id) {
            let state = if obstacle.is_final { SliceState::Failed } else { SliceState::Preparing };
            return (state, Some(obstacle.text.clone()));
        }
        let instance = self.facts.inventory.instance_for(wanted);
        if instance.is_some_and(|i| i.compute == Compute::Foreign) {
            let text = "the GPU instance at its place has compute instances that kerf did not make";
            return (SliceState::Failed, Some(text.to_owned()));
        }
        match self.steps.create_error(&wanted.id) {
            Some((error, true)) => (SliceState::Failed, Some(error.to_string())),
            Some((error, false)) => (SliceState::Preparing, Some(format!("{error}; it is tried again"))),
            None => (SliceState::Preparing, None),
        }
    }

    fn unwanted(&self, slice: UnwantedSlice) -> SliceStatus {
        let UnwantedSlice { gpu, shape, device, id } = slice;
        let (account, occupancy) = (&self.facts.account, self.facts.occupancy());
        let instances = self.facts.inventory.gpu(&gpu).into_iter().flat_map(|g| &g.instances);
        let mut same = instances.filter(|i| shape.instance() == Some(i.instance));
        let is_busy = same.any(|i| occupancy.is_instance_held(i)) || occupancy.is_in_use(&device);
        let strange = shape.instance().is_some() && id.is_none();
        let message = strange.then(|| "kerf did not make it and does not change it".to_owned());
        let orphaned = || occupancy.is_orphaned(&device).then(|| orphaned::TEXT.to_owned());
        SliceStatus {
            id,
            memory: self.memory(&gpu, shape),
            gpu,
            shape,
            state: if is_busy { SliceState::Held } else { SliceState::Idle },
            message: message.or_else(orphaned),
            resource: account.held_as(&device),
            holder: account.possible_holder(&device).map(|h| h.holder.clone()),
            // An instance without a MIG device has a made-up id, which must not be reported.
            device: Some(device).filter(|d| !d.as_str().contains("/gi")),
            ready_for: None,
            reservation: None,
            leaving: true,
        }
    }

    fn memory(&self, gpu: &GpuUuid, shape: Shape) -> MemoryMib {
        let gpu = self.facts.inventory.gpu(gpu);
        let Some(instance) = shape.instance() else {
            return gpu.map_or_else(|| shape.size().share_memory(), |gpu| shape.memory_of(gpu.memory));
        };
        let entry = gpu.and_then(|g| g.table.as_ref()?.entry(instance.profile));
        entry.map_or_else(|| shape.size().share_memory(), |e| e.memory)
    }
}
