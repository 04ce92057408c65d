//! The node as the planner sees it: core's values, built from what the agent has observed.

use super::occupancy::Occupancy;
use super::rules::Rules;
use super::slices::Share;
use super::usage::GpuUse;
use crate::gpu::{Compute, Gpu, GpuInstance};
use kerf_core::contract::WantedSlice;
use kerf_core::names::DeviceId;
use kerf_core::planner::{Observed, ObservedGpu, ObservedInstance, ObservedPart, ObservedShare};

#[derive(Debug, Clone, Copy)]
pub(super) struct Observer<'a> {
    pub(super) rules: Rules<'a>,
    pub(super) occupancy: Occupancy<'a>,
    pub(super) gpu_use: GpuUse<'a>,
}

impl Observer<'_> {
    /// The observed state. Everything in doubt counts as held.
    pub(super) fn observed(self) -> Observed {
        let gpus = self.rules.inventory.gpus().iter();
        Observed { gpus: gpus.map(|gpu| self.gpu(gpu)).collect() }
    }

    fn gpu(self, gpu: &Gpu) -> ObservedGpu {
        let instances = gpu.instances.iter().filter(|i| !self.is_unfinished(gpu, i));
        let outside = self.gpu_use.outside(gpu);
        ObservedGpu {
            uuid: gpu.uuid.clone(),
            // The extender leaves out the memory that no share may have (`beside_shares`). If it were refused here as
            // well, a node that an extender of an earlier version has filled would lose its shares at the next boot.
            memory: gpu.memory.saturating_sub(outside),
            allowed: self.rules.allowed(gpu, outside),
            table: gpu.table.clone(),
            instances: instances.map(|instance| self.instance(instance)).collect(),
            shares: self.shares(gpu),
        }
    }

    fn instance(self, instance: &GpuInstance) -> ObservedInstance {
        let is_known = |device: &DeviceId| self.occupancy.placement.is_known(device);
        let held = |device: &DeviceId| self.occupancy.is_in_use(device) || !is_known(device);
        let part = |(part, _, device): (Option<_>, u32, &DeviceId)| {
            Some(ObservedPart { part: part?, held: held(device) })
        };
        ObservedInstance {
            instance: instance.instance,
            held: self.occupancy.is_instance_held(instance),
            replicas: self.occupancy.replicas(instance),
            parts: instance.devices().filter_map(part).collect(),
        }
    }

    fn shares(self, gpu: &Gpu) -> Vec<ObservedShare> {
        let placement = self.occupancy.placement;
        let is_share = |share: &Share| share.gpu == gpu.uuid && share.shape.instance().is_none();
        let shares = placement.slices.shares().iter().filter(|(_, share)| is_share(share));
        let observed = |(device, share): (&DeviceId, &Share)| ObservedShare {
            id: placement.name_of_share(device, share),
            shape: share.shape,
            held: self.occupancy.is_in_use(device),
        };
        shares.map(observed).collect()
    }

    /// Whether it is a desired GPU instance without its compute instance. It does not exist for the planner, whose step
    /// to create it completes it.
    fn is_unfinished(self, gpu: &Gpu, instance: &GpuInstance) -> bool {
        let is_wanted = |w: &WantedSlice| w.gpu == gpu.uuid && w.shape.instance() == Some(instance.instance);
        instance.compute == Compute::Missing && self.occupancy.placement.desired().iter().any(is_wanted)
    }
}
