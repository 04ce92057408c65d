//! Devices that a pod may hold without a source that names the holder.

use super::device_ids::share_slice;
use super::facts::Facts;
use super::foreign::Foreign;
use super::holders::{Account, Held};
use super::inventory::Inventory;
use super::placement::Placement;
use super::slices::{Share, Slices, shape_of};
use crate::gpu::{Gpu, GpuInstance};
use kerf_core::contract::WantedSlice;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};

impl Facts {
    /// Marks devices as occupied that a pod may hold without a source that names the holder.
    pub(super) fn occupy(&mut self) {
        let mut occupied: BTreeMap<DeviceId, Option<Held>> = BTreeMap::new();
        if self.account.is_blind() {
            occupied.extend(self.unaccounted().into_iter().map(|device| (device, None)));
        } else {
            self.slices.forget_new();
        }
        let held = held_of_others(self.placement(), &self.account);
        // A GPU that a pod may hold by NVIDIA's device plugin is represented as the share that the pod would hold.
        for (device, held) in held.iter().filter(|(device, _)| is_of_plugin(device)) {
            let Some((gpu, id)) = share_slice(device) else { continue };
            let shape = shape_of(&gpu, held.name, &self.inventory, &self.reservations);
            let Some(shape) = shape else { continue };
            self.slices.add_foreign(device, Share { gpu, id, shape });
        }
        occupied.extend(held.into_iter().map(|(device, held)| (device, Some(held))));
        self.account.occupy(occupied);
    }

    /// While the kubelet's checkpoint was never read, an init container may hold a device that no source shows and that
    /// this process has not made. The time when a GPU was first seen does not matter, because a GPU may answer late.
    /// Reservations of bound pods account for their slices: an earlier process has offered them.
    fn unaccounted(&self) -> Vec<DeviceId> {
        let placement = self.placement();
        let is_bound = |wanted: &&WantedSlice| {
            wanted.reservation.as_ref().is_some_and(|r| self.pods.may_be_bound(&r.uid))
        };
        let bound = placement.desired().iter().filter(is_bound);
        let bound: BTreeSet<DeviceId> = bound.filter_map(|wanted| placement.device_of(wanted)).collect();
        let wanted = placement.desired().iter().filter_map(|wanted| placement.device_of(wanted));
        let unwanted = placement.unwanted().into_iter().map(|slice| slice.device);
        let is_open = |device: &DeviceId| {
            let is_accounted = self.account.held_as(device).is_some() || bound.contains(device);
            !is_accounted && !self.slices.is_new(device)
        };
        wanted.chain(unwanted).filter(is_open).collect()
    }
}

/// The devices that pods hold, or may hold, through other programs.
fn held_of_others(placement: Placement<'_>, account: &Account) -> BTreeMap<DeviceId, Held> {
    let mut held = BTreeMap::new();
    let devices = ForeignDevices { inventory: placement.inventory, slices: placement.slices };
    let listed = account.foreign().map(|(foreign, holder)| (foreign.clone(), holder));
    for (foreign, holder) in listed.chain(account.foreign_owned()) {
        let by_it = || Held { name: ResourceName::Whole, holder: holder.clone() };
        let unheld = devices.find(&foreign).into_iter().filter(|d| account.holder(d).is_none());
        held.extend(unheld.map(|device| (device, by_it())));
    }
    held
}

/// The devices that the ids of other programs mean.
struct ForeignDevices<'a> {
    inventory: &'a Inventory,
    slices: &'a Slices,
}

impl ForeignDevices<'_> {
    /// The devices that a foreign id occupies, or may occupy.
    fn find(&self, foreign: &Foreign) -> Vec<DeviceId> {
        let known = match foreign {
            // A GPU that is not visible is offered to no pod anyway.
            Foreign::Uuid(device) => Some(self.inventory.gpu_of(device).map_or_else(Vec::new, |gpu| {
                if gpu.uuid.as_str() == device.as_str() { all_of(gpu) } else { vec![device.clone()] }
            })),
            Foreign::Gpu { minor } => self.on_gpu(*minor, |_| true),
            Foreign::Instance { minor, gi } => self.on_gpu(*minor, |i| i.gi == *gi),
            Foreign::Placed { minor, start } => self.on_gpu(*minor, |i| i.instance.placement.start == *start),
            Foreign::Unknown => None,
        };
        known.unwrap_or_else(|| self.without_kerf())
    }

    /// The GPU instances that match, or all devices of the GPU if none does. A GPU that does not answer may have
    /// another's number.
    fn on_gpu(&self, minor: u32, is_it: impl Fn(&GpuInstance) -> bool) -> Option<Vec<DeviceId>> {
        let devices = |gpu| {
            let found = devices_of(gpu, &is_it);
            if found.is_empty() { all_of(gpu) } else { found }
        };
        let mut gpus = self.inventory.gpus().iter().filter(|gpu| gpu.minor == minor).peekable();
        gpus.peek()?;
        Some(gpus.flat_map(devices).collect())
    }

    /// GPUs without a share of kerf. A GPU in MIG mode counts by the instances on it, as occupied.
    fn without_kerf(&self) -> Vec<DeviceId> {
        let uncut = self.inventory.gpus().iter().filter(|gpu| gpu.table.is_none());
        uncut.filter(|gpu| !self.has_shares(&gpu.uuid)).flat_map(all_of).collect()
    }

    fn has_shares(&self, gpu: &GpuUuid) -> bool {
        self.slices.shares().iter().any(|(device, share)| share.gpu == *gpu && !is_of_plugin(device))
    }
}

/// Whether the id is a whole GPU's UUID, as NVIDIA's device plugin allocates it.
fn is_of_plugin(device: &DeviceId) -> bool {
    share_slice(device).is_some_and(|(gpu, id)| id == SliceId::new(gpu.as_str()))
}

fn all_of(gpu: &Gpu) -> Vec<DeviceId> {
    if gpu.table.is_none() { vec![DeviceId::new(gpu.uuid.as_str())] } else { devices_of(gpu, |_| true) }
}

fn devices_of(gpu: &Gpu, is_it: impl Fn(&GpuInstance) -> bool) -> Vec<DeviceId> {
    let instances = gpu.instances.iter().filter(|instance| is_it(instance));
    instances.flat_map(GpuInstance::devices).map(|(.., device)| device.clone()).collect()
}
