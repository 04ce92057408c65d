//! Steps whose calls may be under way, or have ended without an observation since. Meanwhile the agent offers nothing
//! that they change, even if the desired state is another by then.

use super::Task;
use crate::node::inventory::Inventory;
use kerf_core::names::{DeviceId, GpuUuid};
use std::collections::{BTreeMap, BTreeSet};

/// What may be changing on GPUs. A step that was decided on does not always run.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    begun: BTreeSet<Task>,
    /// The call that is under way on each GPU.
    running: BTreeMap<GpuUuid, Task>,
    unseen: BTreeSet<Task>,
}

impl UnderWay {
    /// Records a step that was decided on.
    pub(super) fn begin(&mut self, task: Task) {
        self.begun.insert(task);
    }

    /// Records that the call of the decided step is under way.
    pub(super) fn start(&mut self, gpu: GpuUuid, task: Task) {
        self.running.insert(gpu, task);
    }

    /// Records the end of a call on a GPU. `unseen` is the task if it needs an observation.
    pub(super) fn end(&mut self, gpu: &GpuUuid, unseen: Option<Task>) {
        self.running.remove(gpu);
        self.forget_begun();
        self.unseen.extend(unseen);
    }

    /// Drops the steps that were decided on and did not run, because they are decided on again.
    pub(super) fn forget_begun(&mut self) {
        self.begun.clear();
    }

    /// Resets everything after an observation without a call under way.
    pub(super) fn see(&mut self) {
        *self = Self::default();
    }

    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.begun.iter().chain(self.running.values()).chain(&self.unseen)
    }

    pub(super) fn is_busy_with(&self, gpu: &GpuUuid) -> bool {
        self.running.contains_key(gpu)
    }

    pub(super) fn is_being_switched(&self, gpu: &GpuUuid) -> bool {
        self.tasks().any(|task| matches!(task, Task::Switch(switched) if switched == gpu))
    }

    /// The devices that are being destroyed.
    pub(super) fn being_destroyed(&self, inventory: &Inventory) -> BTreeSet<DeviceId> {
        let destroyed = self.tasks().filter_map(|task| match task {
            Task::Destroy(gpu, instance, part) => Some(inventory.devices_at(gpu, *instance, *part)),
            Task::Switch(_) | Task::Create(_) => None,
        });
        destroyed.flatten().cloned().collect()
    }
}
