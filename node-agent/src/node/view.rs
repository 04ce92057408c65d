//! The node as the planner and the offer see it: core's values, built from what the agent has observed.

use super::Node;
use super::share::{self, Share};
use crate::gpu::{Compute, Gpu, GpuInstance};
use kerf_core::accounting::beside_shares;
use kerf_core::contract::{MigPart, Reservation, Shape, WantedSlice};
use kerf_core::mig::catalog;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, SliceId};
use kerf_core::offer::ExistingSlice;
use kerf_core::planner::{Observed, ObservedGpu, ObservedInstance, ObservedPart, ObservedShare};
use kerf_core::resource::ResourceName;
use std::collections::BTreeSet;

impl Node {
    /// The slices that the node should have, in the order of the requests.
    pub(super) fn desired(&self) -> &[WantedSlice] {
        &self.ledger.desired().slices
    }

    /// The observed state, for the planner. Everything in doubt counts as held.
    pub(super) fn observed(&self) -> Observed {
        Observed { gpus: self.gpus.iter().map(|gpu| self.observed_gpu(gpu)).collect() }
    }

    fn observed_gpu(&self, gpu: &Gpu) -> ObservedGpu {
        let instances = gpu.instances.iter().filter(|i| !self.is_unfinished(gpu, i));
        let held = |device: &DeviceId| self.account.is_held(device);
        let is_share = |share: &Share| share.gpu == gpu.uuid && share.shape.instance().is_none();
        let shares = self.shares.iter().filter(|(_, share)| is_share(share));
        ObservedGpu {
            uuid: gpu.uuid.clone(),
            // The extender leaves out the memory that no share may have (`beside_shares`). If it were refused here as
            // well, a node that an extender of an earlier version has filled would lose its shares at the next boot.
            memory: gpu.memory.saturating_sub(self.outside(gpu)),
            allowed: self.allowed(gpu),
            table: gpu.table.clone(),
            instances: instances
                .map(|i| ObservedInstance {
                    instance: i.instance,
                    held: self.is_instance_held(i),
                    replicas: self.observed_replicas(i),
                    parts: i
                        .devices()
                        .filter_map(|(part, _, d)| {
                            let held = held(d) || !self.is_known(d) || self.is_lingered(d);
                            Some(ObservedPart { part: part?, held })
                        })
                        .collect(),
                })
                .collect(),
            shares: shares
                .map(|(device, share)| ObservedShare {
                    id: self.name_of_share(device, share),
                    shape: share.shape,
                    held: held(device) || self.is_lingered(device),
                })
                .collect(),
        }
    }

    /// Whether a pod has a part of the GPU instance, or may have. Replicas are counted apart, because their processes
    /// cannot be told apart. An instance that no record lists counts as held.
    pub(super) fn is_instance_held(&self, instance: &GpuInstance) -> bool {
        instance.has_processes && !self.is_instance_by_turns(instance)
            || instance.compute == Compute::Foreign
            || instance
                .devices()
                .any(|(.., d)| self.account.is_held(d) || !self.is_known(d) || self.is_lingered(d))
    }

    fn is_known(&self, device: &DeviceId) -> bool {
        let mut wanted = self.desired().iter().chain(&self.restored.ledger.desired.slices);
        self.origins.contains_key(device) || wanted.any(|w| self.mig_device_of(w).as_ref() == Some(device))
    }

    /// Whether it is a wanted GPU instance without its compute instance. For the planner it does not exist, so that the
    /// planner creates it, which completes it.
    fn is_unfinished(&self, gpu: &Gpu, instance: &GpuInstance) -> bool {
        let is_wanted = |w: &&WantedSlice| w.gpu == gpu.uuid && w.shape.instance() == Some(instance.instance);
        instance.compute == Compute::Missing && self.desired().iter().any(|w| is_wanted(&w))
    }

    /// The shape of a share that a container holds under this name.
    pub(super) fn shape_of(&self, gpu: &GpuUuid, name: ResourceName) -> Option<Shape> {
        let gpu = self.gpu(gpu)?;
        let usable = gpu.memory.saturating_sub(beside_shares(gpu.memory, Some(gpu.reserved)));
        share::shape_of(name, gpu.memory, usable, &self.rule(gpu))
    }

    pub(super) fn holders_on(&self, gpu: &GpuUuid) -> BTreeSet<PodKey> {
        let held = self.account.devices().filter(|(d, _)| share::slice_of(d).is_some_and(|(g, _)| g == *gpu));
        held.map(|(_, held)| held.holder.key()).collect()
    }

    pub(super) fn gpu(&self, uuid: &GpuUuid) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.uuid == *uuid)
    }

    /// The GPU instance of a wanted slice, once it exists.
    pub(super) fn instance_of(&self, wanted: &WantedSlice) -> Option<&GpuInstance> {
        let instance = wanted.shape.instance()?;
        self.gpu(&wanted.gpu)?.instances.iter().find(|i| i.instance == instance)
    }

    /// The device of a wanted slice, once it exists. If two slices want the same, which no plan makes, it belongs to
    /// the first.
    pub(super) fn device_of(&self, wanted: &WantedSlice) -> Option<DeviceId> {
        match wanted.shape {
            Shape::Mig { part: MigPart::Replica { .. }, .. } => {
                let is_it = |share: &Share| share.gpu == wanted.gpu && share.id == wanted.id;
                let mut shares = self.shares.iter().filter(|(_, share)| share.shape == wanted.shape);
                shares.find(|(_, share)| is_it(share)).map(|(device, _)| device.clone())
            }
            Shape::Mig { part, .. } => {
                let same = |w: &&WantedSlice| w.gpu == wanted.gpu && w.shape == wanted.shape;
                let first = self.desired().iter().find(same);
                let mut devices = self.instance_of(wanted)?.devices();
                devices
                    .find(|(at, ..)| *at == part.compute() && first.is_none_or(|w| w.id == wanted.id))
                    .map(|(.., d)| d.clone())
                    .filter(|d| !self.is_by_turns(d))
            }
            Shape::Whole { .. } | Shape::Mps { .. } | Shape::TimeSlicing { .. } => {
                let is_it = |share: &Share| share.shape == wanted.shape;
                Some(share::device_id(&wanted.gpu, &wanted.id))
                    .filter(|device| self.shares.get(device).is_some_and(is_it))
            }
        }
    }

    /// Every slice that exists: wanted ones in the order of their reservations, then those that are only held.
    pub(super) fn existing(&self) -> Vec<ExistingSlice> {
        let wanted = self.desired().iter().filter_map(|w| {
            let device = self.device_of(w)?;
            Some(self.existing_slice(w.id.clone(), &w.gpu, w.shape, device, Some(w)))
        });
        let mut all: Vec<_> = wanted.collect();
        for (gpu, shape, device, id) in self.unwanted() {
            // A slice without a name in the ledger uses its device's id, because the offer only needs distinct names.
            let id = id.unwrap_or_else(|| SliceId::new(device.as_str()));
            all.push(self.existing_slice(id, &gpu, shape, device, None));
        }
        all
    }

    fn existing_slice(
        &self,
        id: SliceId,
        gpu: &GpuUuid,
        shape: Shape,
        device: DeviceId,
        wanted: Option<&WantedSlice>,
    ) -> ExistingSlice {
        ExistingSlice {
            id,
            held_as: self.account.held_as(&device),
            settled: self.is_settled(wanted, &device),
            // Filled in later, once all existing slices are known.
            served: false,
            reservation: wanted.and_then(|w| self.open_reservation(w, &device)).cloned(),
            device,
            shape,
            model: self.model_of(gpu),
        }
    }

    /// The short name of the GPU's model; empty for a GPU that is not visible.
    pub(super) fn model_of(&self, gpu: &GpuUuid) -> String {
        self.gpu(gpu).map(|gpu| catalog::short_name(&gpu.product, gpu.memory)).unwrap_or_default()
    }

    /// The slice's reservation; `None` while its device is in doubt.
    fn open_reservation<'w>(&self, wanted: &'w WantedSlice, device: &DeviceId) -> Option<&'w Reservation> {
        wanted.reservation.as_ref().filter(|_| !self.account.is_doubted(device))
    }

    /// Slices that exist without being wanted: GPU, shape, device, and their earlier name in the ledger.
    pub(super) fn unwanted(&self) -> Vec<(GpuUuid, Shape, DeviceId, Option<SliceId>)> {
        let mut all = Vec::new();
        for gpu in &self.gpus {
            let wanted: Vec<DeviceId> = {
                let here = self.desired().iter().filter(|w| w.gpu == gpu.uuid);
                here.filter_map(|w| self.device_of(w)).collect()
            };
            let is_wanted = |i: &GpuInstance| {
                let mut slices = self.desired().iter();
                slices.any(|w| w.gpu == gpu.uuid && w.shape.instance() == Some(i.instance))
            };
            for instance in &gpu.instances {
                let unwanted = |d: &DeviceId| !wanted.contains(d) && !self.is_by_turns(d);
                for (part, _, device) in instance.devices().filter(|(.., d)| unwanted(d)) {
                    let id = self.origins.get(device).map(|id| self.name_of_unwanted(device, id));
                    let shape = Shape::of_instance(instance.instance, part.into());
                    all.push((gpu.uuid.clone(), shape, device.clone(), id));
                }
                // An instance without a device still takes its place, so its id on the GPU serves as device id.
                if instance.devices().next().is_none() && !is_wanted(instance) {
                    let device = DeviceId::new(format!("{}/gi{}", gpu.uuid, instance.gi));
                    // No pod can use an instance without compute instances, so it belongs to none, and gets a name to
                    // be destroyed by.
                    let id = (instance.compute == Compute::Missing).then(|| SliceId::new(device.as_str()));
                    all.push((gpu.uuid.clone(), Shape::mig(instance.instance), device, id));
                }
            }
        }
        for (device, share) in &self.shares {
            if !self.is_wanted_share(device, share) {
                let id = self.name_of_unwanted(device, &share.id);
                all.push((share.gpu.clone(), share.shape, device.clone(), Some(id)));
            }
        }
        all
    }

    /// The name of an unwanted slice. After the loss of a ledger the first names are used again, so it may belong to
    /// another slice.
    fn name_of_unwanted(&self, device: &DeviceId, id: &SliceId) -> SliceId {
        let is_anothers = self.desired().iter().any(|w| w.id == *id);
        if is_anothers { SliceId::new(device.as_str()) } else { id.clone() }
    }

    pub(super) fn is_wanted_share(&self, device: &DeviceId, share: &Share) -> bool {
        let mut named = self.desired().iter().filter(|w| w.id == share.id && w.gpu == share.gpu);
        named.any(|w| self.device_of(w).as_ref() == Some(device))
    }

    /// The planner's name of a share.
    pub(super) fn name_of_share(&self, device: &DeviceId, share: &Share) -> SliceId {
        let is_wanted = self.is_wanted_share(device, share);
        if is_wanted { share.id.clone() } else { self.name_of_unwanted(device, &share.id) }
    }

    /// The device of the share with this name of the planner's.
    pub(super) fn share_named(&self, gpu: &GpuUuid, id: &SliceId) -> Option<DeviceId> {
        let mut of_gpu = self.shares.iter().filter(|(_, share)| share.gpu == *gpu);
        of_gpu
            .find(|(device, share)| self.name_of_share(device, share) == *id)
            .map(|(device, _)| device.clone())
    }
}
