//! Matches the node's devices with the desired slices.

use super::device_ids::share_device;
use super::inventory::Inventory;
use super::reservations::Reservations;
use super::slices::{Share, Slices, undivided};
use crate::gpu::{Compute, Gpu, GpuInstance};
use kerf_core::contract::{MigPart, Shape, WantedSlice};
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use std::collections::{BTreeMap, BTreeSet};

/// The existing slices, and the desired ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) slices: &'a Slices,
    pub(super) reservations: &'a Reservations,
}

/// A slice that exists and is not desired.
#[derive(Debug)]
pub(super) struct UnwantedSlice {
    pub(super) gpu: GpuUuid,
    pub(super) shape: Shape,
    pub(super) device: DeviceId,
    /// Its earlier name in the ledger; `None` if no record lists it.
    pub(super) id: Option<SliceId>,
}

impl<'a> Placement<'a> {
    pub(super) fn desired(self) -> &'a [WantedSlice] {
        self.reservations.desired()
    }

    /// The device of a desired slice, once it exists. If two slices have the same place, which no plan makes, it is the
    /// first one's.
    pub(super) fn device_of(self, wanted: &WantedSlice) -> Option<DeviceId> {
        match wanted.shape {
            Shape::Mig { part: MigPart::Replica { .. }, .. } => {
                let is_it = |share: &Share| share.gpu == wanted.gpu && share.id == wanted.id;
                let mut shares = self.slices.shares().iter().filter(|(_, s)| s.shape == wanted.shape);
                shares.find(|(_, share)| is_it(share)).map(|(device, _)| device.clone())
            }
            Shape::Mig { part, .. } => {
                let same = |w: &&WantedSlice| w.gpu == wanted.gpu && w.shape == wanted.shape;
                let first = self.desired().iter().find(same);
                let mut devices = self.inventory.instance_for(wanted)?.devices();
                devices
                    .find(|(at, ..)| *at == part.compute() && first.is_none_or(|w| w.id == wanted.id))
                    .map(|(.., d)| d.clone())
                    // A MIG device with replicas is offered as its replicas only, so it must not count as a whole
                    // slice.
                    .filter(|d| !self.slices.is_time_sliced(d))
            }
            Shape::Whole { .. } | Shape::Mps { .. } | Shape::TimeSlicing { .. } => {
                let is_it = |share: &Share| share.shape == wanted.shape;
                Some(share_device(&wanted.gpu, &wanted.id))
                    .filter(|device| self.slices.shares().get(device).is_some_and(is_it))
            }
        }
    }

    /// The MIG device of a desired slice, or of its replica, once it exists.
    fn mig_device_of(self, wanted: &WantedSlice) -> Option<DeviceId> {
        match wanted.shape.replica() {
            Some(_) => undivided(self.inventory.instance_for(wanted)?).cloned(),
            None => self.device_of(wanted).filter(|_| wanted.shape.instance().is_some()),
        }
    }

    pub(super) fn is_wanted_share(self, device: &DeviceId, share: &Share) -> bool {
        let mut named = self.desired().iter().filter(|w| w.id == share.id && w.gpu == share.gpu);
        named.any(|w| self.device_of(w).as_ref() == Some(device))
    }

    /// The name of an unwanted slice. After the loss of a ledger the first names are used again, so it may belong to
    /// another slice.
    fn name_of_unwanted(self, device: &DeviceId, id: &SliceId) -> SliceId {
        let is_anothers = self.desired().iter().any(|w| w.id == *id);
        if is_anothers { SliceId::new(device.as_str()) } else { id.clone() }
    }

    /// The planner's name of a share.
    pub(super) fn name_of_share(self, device: &DeviceId, share: &Share) -> SliceId {
        let is_wanted = self.is_wanted_share(device, share);
        if is_wanted { share.id.clone() } else { self.name_of_unwanted(device, &share.id) }
    }

    /// The device of the share with this name of the planner's.
    pub(super) fn share_named(self, gpu: &GpuUuid, id: &SliceId) -> Option<DeviceId> {
        let mut of_gpu = self.slices.shares().iter().filter(|(_, share)| share.gpu == *gpu);
        of_gpu
            .find(|(device, share)| self.name_of_share(device, share) == *id)
            .map(|(device, _)| device.clone())
    }

    /// Slices that exist and are not desired.
    pub(super) fn unwanted(self) -> Vec<UnwantedSlice> {
        let mut all: Vec<_> = self.inventory.gpus().iter().flat_map(|gpu| self.unwanted_on(gpu)).collect();
        for (device, share) in self.slices.shares() {
            if !self.is_wanted_share(device, share) {
                let id = Some(self.name_of_unwanted(device, &share.id));
                let (gpu, shape) = (share.gpu.clone(), share.shape);
                all.push(UnwantedSlice { gpu, shape, device: device.clone(), id });
            }
        }
        all
    }

    fn unwanted_on(self, gpu: &Gpu) -> Vec<UnwantedSlice> {
        let here = move || self.desired().iter().filter(move |w| w.gpu == gpu.uuid);
        let wanted: Vec<DeviceId> = here().filter_map(|w| self.device_of(w)).collect();
        let is_unwanted = |d: &DeviceId| !wanted.contains(d) && !self.slices.is_time_sliced(d);
        let is_wanted = |i: &GpuInstance| here().any(|w| w.shape.instance() == Some(i.instance));
        let unwanted = |shape, device, id| UnwantedSlice { gpu: gpu.uuid.clone(), shape, device, id };
        let mut all = Vec::new();
        for instance in &gpu.instances {
            for (part, _, device) in instance.devices().filter(|(.., d)| is_unwanted(d)) {
                let id = self.slices.origin(device).map(|id| self.name_of_unwanted(device, id));
                let shape = Shape::from_instance(instance.instance, part.into());
                all.push(unwanted(shape, device.clone(), id));
            }
            // An instance without a device still takes its place, so its id on the GPU serves as device id.
            if instance.devices().next().is_none() && !is_wanted(instance) {
                let device = DeviceId::new(format!("{}/gi{}", gpu.uuid, instance.gi));
                // No pod can use an instance without compute instances, so it belongs to none, and gets a name to be
                // destroyed by.
                let id = (instance.compute == Compute::Missing).then(|| SliceId::new(device.as_str()));
                all.push(unwanted(Shape::mig(instance.instance), device, id));
            }
        }
        all
    }

    /// Whether a checkpoint lists the MIG device.
    pub(super) fn is_known(self, device: &DeviceId) -> bool {
        let mut wanted = self.desired().iter().chain(self.slices.recorded());
        self.slices.origin(device).is_some() || wanted.any(|w| self.mig_device_of(w).as_ref() == Some(device))
    }

    /// The names of the MIG devices of desired slices. The ledger's own names take precedence; those of the checkpoint
    /// fill in for slices that the ledger no longer has.
    pub(super) fn origins(self) -> BTreeMap<DeviceId, SliceId> {
        let mut origins = BTreeMap::new();
        let named = self.desired().iter().chain(self.slices.recorded());
        for wanted in named.filter(|wanted| wanted.shape.instance().is_some()) {
            if let Some(device) = self.mig_device_of(wanted) {
                origins.entry(device).or_insert_with(|| wanted.id.clone());
            }
        }
        origins
    }

    /// MIG devices that the agent made for slices that are no longer desired. They exist, or existed at the start on a
    /// GPU that is not visible. Desired slices are known by their places, so a cut changes nothing here and costs no
    /// write.
    pub(super) fn leftovers(self, is_observed: bool) -> BTreeMap<DeviceId, SliceId> {
        let visible = self.mig_devices();
        let sees_all = is_observed && self.inventory.sees_all();
        let may_be = |device: &DeviceId| !sees_all && self.slices.was_recorded(device);
        let desired = self.desired().iter().filter_map(|slice| Some((self.mig_device_of(slice)?, &slice.id)));
        let desired: BTreeSet<_> = desired.collect();
        let made =
            self.slices.origins().iter().filter(|(device, _)| visible.contains(device) || may_be(device));
        let made = made.filter(|(device, id)| !desired.contains(&((*device).clone(), *id)));
        made.map(|(device, id)| (device.clone(), id.clone())).collect()
    }

    /// The MIG devices that are visible.
    pub(super) fn mig_devices(self) -> BTreeSet<&'a DeviceId> {
        let instances = self.inventory.gpus().iter().flat_map(|gpu| &gpu.instances);
        instances.flat_map(|instance| instance.devices().map(|(.., device)| device)).collect()
    }

    /// Visible MIG devices that no record lists. They count as occupied.
    pub(super) fn unknown(self) -> Vec<DeviceId> {
        let instances = self.inventory.gpus().iter().flat_map(|gpu| &gpu.instances);
        let devices = instances
            .filter(|instance| instance.compute != Compute::Missing)
            .flat_map(|instance| instance.devices().map(|(.., device)| device.clone()));
        devices.filter(|device| self.slices.origin(device).is_none()).collect()
    }
}
