//! Creates with an unknown outcome. A call that hangs may make the slice after it is no longer desired.

use super::Slices;
use crate::node::inventory::Inventory;
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::{GpuUuid, SliceId};
use kerf_core::planner::Step;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    gpu: GpuUuid,
    cut: (Instance, Option<ComputeInstance>),
    pub(super) id: SliceId,
}

impl Slices {
    /// Records that a step was decided on, which may create a slice.
    pub(in crate::node) fn begin(&mut self, step: &Step) {
        let Step::Create { gpu, instance, part, id } = step else { return };
        let attempt = Attempt { gpu: gpu.clone(), cut: (*instance, *part), id: id.clone() };
        if !self.attempts.contains(&attempt) {
            self.attempts.push(attempt);
        }
    }

    /// Names the instances that attempts have made, on GPUs that answer: none of their calls is under way any more.
    pub(in crate::node) fn look_at_attempts(&mut self, inventory: &Inventory) {
        for attempt in std::mem::take(&mut self.attempts) {
            let Attempt { gpu, cut: (instance, part), id } = &attempt;
            if inventory.gpu(gpu).is_none_or(|gpu| gpu.fault.is_some()) {
                self.attempts.push(attempt);
                continue;
            }
            let found = inventory.find(gpu, *instance).into_iter();
            let mut devices = found.flat_map(crate::gpu::GpuInstance::devices);
            if let Some((.., device)) = devices.find(|(at, ..)| at == part) {
                self.origins.entry(device.clone()).or_insert_with(|| id.clone());
            }
        }
    }
}
