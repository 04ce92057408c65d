//! Handles the results of the steps that change GPUs.

use super::{Node, NodeEvent, Task};
use crate::gpu::{Compute, GpuError, GpuInstance};
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::{GpuUuid, SliceId};
use std::time::Instant;

impl Node {
    pub fn on_created(
        &mut self,
        gpu: &GpuUuid,
        id: &SliceId,
        result: Result<GpuInstance, GpuError>,
        now: Instant,
    ) {
        self.under_way.end(gpu, None);
        match result {
            Ok(created) => {
                self.unrecorded = None;
                self.retries.succeeded(&Task::Create(id.clone()));
                self.attempts.retain(|attempt| attempt.id != *id);
                // The slice may not be desired any more, so keep the name.
                for (.., device) in created.devices() {
                    self.origins.entry(device.clone()).or_insert_with(|| id.clone());
                    self.made.insert(device.clone());
                }
                if let Some(gpu) = self.gpus.iter_mut().find(|g| g.uuid == *gpu) {
                    gpu.instances.retain(|i| !i.instance.placement.overlaps(created.instance.placement));
                    gpu.instances.push(created);
                    gpu.instances.sort_by_key(|i| i.instance.placement.start);
                }
            }
            Err(error) => self.retries.failed(Task::Create(id.clone()), error, now),
        }
    }

    pub fn on_destroyed(
        &mut self,
        gpu: &GpuUuid,
        (instance, part): (Instance, Option<ComputeInstance>),
        result: Result<(), GpuError>,
        now: Instant,
    ) {
        let task = Task::Destroy(gpu.clone(), instance, part);
        self.under_way.end(gpu, result.is_err().then(|| task.clone()));
        match result {
            Ok(()) => {
                self.retries.succeeded(&task);
                let gpu = self.gpus.iter_mut().find(|g| g.uuid == *gpu);
                let instances = gpu.map(|gpu| &mut gpu.instances);
                match (instances, part) {
                    (None, _) => {}
                    (Some(instances), None) => instances.retain(|i| i.instance != instance),
                    (Some(instances), Some(part)) => {
                        instances.iter_mut().filter(|i| i.instance == instance).for_each(|i| forget(i, part));
                    }
                }
                self.forget_ills_of_gone();
            }
            Err(error) => self.retries.failed(task, error, now),
        }
    }

    /// Takes the outcome of a switch of the MIG mode. The next observation shows what the GPU offers then.
    pub fn on_switched(&mut self, gpu: &GpuUuid, mig: bool, result: Result<(), GpuError>, now: Instant) {
        let task = Task::Switch(gpu.clone());
        self.under_way.end(gpu, Some(task.clone()));
        match result {
            Ok(()) => {
                self.unrecorded = None;
                self.retries.succeeded(&task);
                self.tell(NodeEvent::ModeChanged { gpu: gpu.clone(), mig });
            }
            Err(error) => self.retries.failed(task, error, now),
        }
    }
}

/// Removes a compute instance that is gone from its GPU instance.
fn forget(instance: &mut GpuInstance, part: ComputeInstance) {
    if let Compute::Parts(parts) = &mut instance.compute {
        parts.retain(|p| p.instance != part);
        if parts.is_empty() {
            instance.compute = Compute::Missing;
        }
    }
}
