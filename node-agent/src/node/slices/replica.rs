//! Replicas: pods that take turns on one MIG device.
//!
//! A replica is served like a share, and goes with its MIG device. Its number is its name, so a replica that the
//! kubelet has from before a restart, or from NVIDIA's plugin, is the same one.

use super::{Share, Slices};
use crate::gpu::{Gpu, GpuInstance};
use crate::node::device_ids::replica_of;
use crate::node::holders::Account;
use crate::node::inventory::Inventory;
use kerf_core::contract::{MigPart, Shape, WantedSlice};
use kerf_core::mig::Instance;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::resource::ResourceName;
use std::collections::BTreeMap;

/// The MIG device of an instance that one full-size compute instance fills.
pub(in crate::node) fn undivided(instance: &GpuInstance) -> Option<&DeviceId> {
    instance.devices().find(|(part, ..)| part.is_none()).map(|(.., device)| device)
}

/// The GPU and the instance of a MIG device whose compute instance is of full size.
fn place_of(device: &DeviceId, inventory: &Inventory) -> Option<(GpuUuid, Instance)> {
    let of = |gpu: &Gpu| {
        let found = gpu.instances.iter().find(|instance| undivided(instance) == Some(device))?;
        Some((gpu.uuid.clone(), found.instance))
    };
    inventory.gpus().iter().find_map(of)
}

/// The replica with this id; `None` while its MIG device is not visible.
pub(super) fn replica(device: &DeviceId, inventory: &Inventory) -> Option<Share> {
    let (of, replica) = replica_of(device)?;
    let (gpu, instance) = place_of(&of, inventory)?;
    let shape = Shape::from_instance(instance, MigPart::Replica { replica });
    Some(Share { id: SliceId::new(device.as_str()), gpu, shape })
}

impl Slices {
    /// Makes replicas exist that containers hold, whatever is desired, and drops those whose MIG device is gone. Each
    /// gets the name of the desired slice at its place.
    pub(in crate::node) fn adopt_replicas(
        &mut self,
        account: &Account,
        inventory: &Inventory,
        desired: &[WantedSlice],
    ) {
        // Under a MIG device's own name, such an id belongs to NVIDIA's device plugin, which shares the device by
        // turns.
        let by_turns = |name: ResourceName| matches!(name, ResourceName::MigReplica(_)) || name.is_neutral();
        let held = account.devices().filter(|(_, held)| by_turns(held.name));
        let held: BTreeMap<DeviceId, Share> =
            held.filter_map(|(device, _)| Some((device.clone(), replica(device, inventory)?))).collect();
        for (device, replica) in held {
            self.shares.entry(device).or_insert(replica);
        }
        self.shares.retain(|device, share| {
            // While a GPU is not visible, nothing on it is known to have changed.
            let is_gone = |_| inventory.gpu(&share.gpu).is_some() && replica(device, inventory).is_none();
            !replica_of(device).is_some_and(is_gone)
        });
        for (device, share) in &mut self.shares {
            if share.shape.replica().is_some() {
                let is_it = |w: &&WantedSlice| w.gpu == share.gpu && w.shape == share.shape;
                let wanted = desired.iter().find(is_it);
                share.id = wanted.map_or_else(|| SliceId::new(device.as_str()), |wanted| wanted.id.clone());
            }
        }
    }
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
