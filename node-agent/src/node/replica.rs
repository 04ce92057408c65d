//! Replicas: pods that take turns on one MIG device. Their device ids are those of NVIDIA's device plugin,
//! `MIG-<UUID>::<n>`, so that tools that join pods with metrics or labels by these ids find the MIG device.
//!
//! A replica is served like a share, and goes with its MIG device. Its number is its name, so a replica that the
//! kubelet has from before a restart, or from NVIDIA's plugin, is the same one.

use super::Node;
use super::share::{SEPARATOR, Share};
use crate::gpu::{Gpu, GpuInstance};
use kerf_core::contract::{MigPart, Shape, WantedSlice};
use kerf_core::mig::Instance;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::planner::ObservedReplica;
use kerf_core::resource::ResourceName;
use std::collections::BTreeMap;
use std::time::Instant;

/// The prefix of a MIG device's UUID (NVML, `nvmlDeviceGetUUID`).
pub(super) const MIG_PREFIX: &str = "MIG-";

pub(super) fn device_id(of: &DeviceId, number: u8) -> DeviceId {
    DeviceId::new(format!("{of}{SEPARATOR}{number}"))
}

/// The MIG device and the number of a replica; `None` for other ids.
pub(super) fn replica_of(device: &DeviceId) -> Option<(DeviceId, u8)> {
    let (of, number) = device.as_str().strip_prefix(MIG_PREFIX)?.split_once(SEPARATOR)?;
    let number = number.parse().ok()?;
    let of = DeviceId::new(format!("{MIG_PREFIX}{of}"));
    // Reject another spelling of the number, because it would be another device to the kubelet.
    (device_id(&of, number) == *device).then_some((of, number))
}

/// The MIG device of a device id, which may be a replica's.
pub(super) fn mig_device(device: &DeviceId) -> DeviceId {
    replica_of(device).map_or_else(|| device.clone(), |(of, _)| of)
}

/// The MIG device of an instance that one full-size compute instance fills.
fn undivided(instance: &GpuInstance) -> Option<&DeviceId> {
    instance.devices().find(|(part, ..)| part.is_none()).map(|(.., device)| device)
}

impl Node {
    /// The replicas of a MIG device, with their device ids.
    pub(super) fn replicas_of(&self, of: &DeviceId) -> impl Iterator<Item = (&DeviceId, &Share)> {
        self.shares.iter().filter(move |(device, _)| replica_of(device).is_some_and(|(mig, _)| mig == *of))
    }

    /// Whether pods take turns on the MIG device, or may. Then no pod gets all of it.
    pub(super) fn is_by_turns(&self, device: &DeviceId) -> bool {
        self.replicas_of(device).next().is_some()
    }

    /// Whether pods take turns on the GPU instance.
    pub(super) fn is_instance_by_turns(&self, instance: &GpuInstance) -> bool {
        undivided(instance).is_some_and(|device| self.is_by_turns(device))
    }

    /// The MIG device of a wanted slice, or of its replica, once it exists.
    pub(super) fn mig_device_of(&self, wanted: &WantedSlice) -> Option<DeviceId> {
        match wanted.shape.replica() {
            Some(_) => undivided(self.instance_of(wanted)?).cloned(),
            None => self.device_of(wanted).filter(|_| wanted.shape.instance().is_some()),
        }
    }

    /// The GPU and the instance of a MIG device whose compute instance is of full size.
    fn place_of(&self, device: &DeviceId) -> Option<(GpuUuid, Instance)> {
        let of = |gpu: &Gpu| {
            let found = gpu.instances.iter().find(|instance| undivided(instance) == Some(device))?;
            Some((gpu.uuid.clone(), found.instance))
        };
        self.gpus.iter().find_map(of)
    }

    /// The replica with this id; `None` while its MIG device is not visible.
    pub(super) fn replica(&self, device: &DeviceId) -> Option<Share> {
        let (of, replica) = replica_of(device)?;
        let (gpu, instance) = self.place_of(&of)?;
        let shape = Shape::of_instance(instance, MigPart::Replica { replica });
        Some(Share { id: SliceId::new(device.as_str()), gpu, shape })
    }

    /// Makes replicas exist that containers hold, whatever is desired, and drops those whose MIG device is gone. Each
    /// gets the name of the wanted slice at its place.
    pub(super) fn adopt_replicas(&mut self) {
        // Under a MIG device's own name, such an id belongs to NVIDIA's device plugin, which shares the device by
        // turns.
        let by_turns = |name: ResourceName| matches!(name, ResourceName::MigReplica(_)) || name.is_neutral();
        let held = self.account.devices().filter(|(_, held)| by_turns(held.name));
        let held: BTreeMap<DeviceId, Share> =
            held.filter_map(|(device, _)| Some((device.clone(), self.replica(device)?))).collect();
        let mut shares = std::mem::take(&mut self.shares);
        for (device, replica) in held {
            shares.entry(device).or_insert(replica);
        }
        shares.retain(|device, share| {
            // While a GPU is not visible, nothing on it is known to have changed.
            let is_gone = |_| self.gpu(&share.gpu).is_some() && self.replica(device).is_none();
            !replica_of(device).is_some_and(is_gone)
        });
        for (device, share) in &mut shares {
            if share.shape.replica().is_some() {
                let is_it = |w: &&WantedSlice| w.gpu == share.gpu && w.shape == share.shape;
                let wanted = self.desired().iter().find(is_it);
                share.id = wanted.map_or_else(|| SliceId::new(device.as_str()), |wanted| wanted.id.clone());
            }
        }
        self.shares = shares;
    }

    /// The replicas of a GPU instance, in the planner's form.
    pub(super) fn observed_replicas(&self, instance: &GpuInstance) -> Vec<ObservedReplica> {
        let observed = |(device, share): (&DeviceId, &Share)| {
            let held = self.account.is_held(device) || self.is_lingered(device);
            Some(ObservedReplica {
                number: share.shape.replica()?,
                id: self.name_of_share(device, share),
                held,
            })
        };
        undivided(instance).map_or_else(Vec::new, |of| self.replicas_of(of).filter_map(observed).collect())
    }

    /// The id under which a replica of this shape can be served now; `None` while a container may still get the whole
    /// MIG device.
    pub(super) fn startable_replica(
        &mut self,
        gpu: &GpuUuid,
        shape: Shape,
        now: Instant,
    ) -> Option<DeviceId> {
        let (instance, number) = (shape.instance()?, shape.replica()?);
        let found = self.gpu(gpu)?.instances.iter().find(|found| found.instance == instance)?;
        let of = undivided(found)?.clone();
        let is_free = !self.advertised.is_listed(&of) || self.may_go(&of, now);
        is_free.then(|| device_id(&of, number))
    }
}

#[cfg(test)]
#[path = "replica_tests.rs"]
mod tests;
