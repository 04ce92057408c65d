//! Steps whose calls may be under way, or have ended in a way that nobody has seen yet: what they are about is not offered
//! meanwhile, whatever the newest spec wants.

use super::{Node, Task};
use crate::gpu::GpuInstance;
use kerf_core::names::{DeviceId, GpuUuid};
use std::collections::BTreeSet;

/// What may be becoming of GPUs and slices. At most one call is under way, but it is not known here which of the steps
/// that were decided on is run.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    begun: BTreeSet<Task>,
    unseen: BTreeSet<Task>,
}

impl UnderWay {
    /// A step was decided on.
    pub(super) fn begin(&mut self, task: Option<Task>) {
        self.begun.extend(task);
    }

    /// A call has ended, so that none is under way; `unseen` is what it was about, if it has to be looked at.
    pub(super) fn end(&mut self, unseen: Option<Task>) {
        self.begun.clear();
        self.unseen.extend(unseen);
    }

    /// The GPUs were looked at.
    pub(super) fn see(&mut self) {
        self.begun.clear();
        self.unseen.clear();
    }

    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.begun.union(&self.unseen)
    }
}

impl Node {
    /// Whether the GPU's MIG mode is being switched.
    pub(super) fn is_being_switched(&self, gpu: &GpuUuid) -> bool {
        self.under_way.tasks().any(|task| matches!(task, Task::Switch(switched) if switched == gpu))
    }

    /// The devices that are being destroyed.
    pub(super) fn being_destroyed(&self) -> BTreeSet<DeviceId> {
        let mut devices = BTreeSet::new();
        for task in self.under_way.tasks() {
            let Task::Destroy(gpu, instance, part) = task else { continue };
            let found = self.find(gpu, *instance).into_iter().flat_map(GpuInstance::devices);
            devices.extend(found.filter(|(at, ..)| part.is_none() || at == part).map(|(.., d)| d.clone()));
        }
        devices
    }
}
