//! The device lists for the kubelet, and what a container gets with each device.

use super::advertise::{DevicesByName, Listing};
use super::{Grant, ListedDevice, Node, ShareGrant, replica, share};
use crate::gpu::{Gpu, GpuInstance};
use kerf_core::names::DeviceId;
use kerf_core::offer::ExistingSlice;
use kerf_core::resource::ResourceName;
use kerf_core::units::ComputePercent;
use std::collections::BTreeMap;

impl Node {
    /// The list of each name. Empty while names must not be registered yet: recorded slices are made first, and no
    /// other manager may serve the node.
    pub(super) fn lists(
        &mut self,
        existing: &[ExistingSlice],
        ungranted: &DevicesByName,
    ) -> BTreeMap<ResourceName, Vec<ListedDevice>> {
        if !self.named && (self.is_recovering() || self.is_closed()) {
            return BTreeMap::new();
        }
        self.named |= self.health.nvml.is_well();
        let grants: BTreeMap<&DeviceId, &ExistingSlice> = existing.iter().map(|s| (&s.device, s)).collect();
        let granted = |id: &DeviceId| grants.get(id).and_then(|slice| self.grant(slice));
        let reservation = |id: &DeviceId| grants.get(id)?.reservation.as_ref();
        let is_granted = |name, id: &DeviceId, listing| {
            let is_unlike = ungranted.get(&name).is_some_and(|devices| devices.contains(id));
            self.grants && listing != Listing::Revoked && !is_unlike
        };
        let listed = |name, id: &DeviceId, listing| ListedDevice {
            id: id.clone(),
            healthy: listing == Listing::Healthy,
            held: self.account.is_held(id),
            grant: if is_granted(name, id, listing) { granted(id) } else { None },
            reserved_for: reservation(id).map(|reservation| reservation.uid.clone()),
            numa: self.gpu_of(id).and_then(|gpu| gpu.topology.numa),
            closeness: self.closeness.clone(),
        };
        let lists = self.advertised.lists();
        lists.map(|(name, list)| (name, list.map(|(id, l)| listed(name, id, l)).collect())).collect()
    }

    fn grant(&self, slice: &ExistingSlice) -> Option<Grant> {
        let gpu = self.gpu_of(&slice.device)?;
        let is_limited = self.rule(gpu).mps.limits_compute();
        let share = slice.shape.instance().is_none().then(|| ShareGrant {
            kind: slice.shape.kind(),
            memory: slice.shape.memory_of(gpu.memory),
            of: gpu.memory,
            compute: if is_limited { slice.shape.compute() } else { Some(ComputePercent::ALL) },
        });
        let text = format!("{} {} on {}", slice.id, slice.shape, gpu.uuid);
        Some(Grant { gpu: gpu.uuid.clone(), slice: text, share, access: self.access_to(&slice.device) })
    }

    pub(super) fn gpu_of(&self, device: &DeviceId) -> Option<&Gpu> {
        if let Some((uuid, _)) = share::slice_of(device) {
            return self.gpu(&uuid);
        }
        let device = replica::mig_device(device);
        let has =
            |gpu: &&Gpu| gpu.instances.iter().flat_map(GpuInstance::devices).any(|(.., d)| *d == device);
        self.gpus.iter().find(has)
    }
}
