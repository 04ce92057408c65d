//! Steps whose calls may be under way, or have ended in a way that nobody has seen yet: what they are about is not offered
//! meanwhile, whatever is desired by then.

use super::{Node, Task};
use crate::gpu::GpuInstance;
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::planner::Step;
use std::collections::{BTreeMap, BTreeSet};

/// A create whose outcome is not known. A call that hangs may make the slice after it is desired no more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    gpu: GpuUuid,
    cut: (Instance, Option<ComputeInstance>),
    pub(super) id: SliceId,
}

/// What may be becoming of GPUs and slices. Of the steps that were decided on not each is run.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    begun: BTreeSet<Task>,
    /// The call that is under way on each GPU.
    running: BTreeMap<GpuUuid, Task>,
    unseen: BTreeSet<Task>,
}

impl UnderWay {
    /// A step was decided on.
    pub(super) fn begin(&mut self, task: Option<Task>) {
        self.begun.extend(task);
    }

    /// A call on a GPU has ended; `unseen` is what it was about, if it has to be looked at.
    pub(super) fn end(&mut self, gpu: &GpuUuid, unseen: Option<Task>) {
        self.running.remove(gpu);
        self.forget_begun();
        self.unseen.extend(unseen);
    }

    /// Steps that were decided on and not run are decided on anew.
    pub(super) fn forget_begun(&mut self) {
        self.begun.clear();
    }

    /// The GPUs were looked at, while no call was under way.
    pub(super) fn see(&mut self) {
        *self = Self::default();
    }

    fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.begun.iter().chain(self.running.values()).chain(&self.unseen)
    }
}

impl Node {
    /// A step was decided on.
    pub(super) fn begin(&mut self, step: Option<&Step>) {
        self.under_way.begin(step.map(super::decide::task));
        if let Some(Step::Create { gpu, instance, part, id }) = step {
            let attempt = Attempt { gpu: gpu.clone(), cut: (*instance, *part), id: id.clone() };
            if !self.attempts.contains(&attempt) {
                self.attempts.push(attempt);
            }
        }
    }

    /// The call of a step that was decided on is under way: no other one begins on its GPU.
    pub fn on_started(&mut self, step: &Step) {
        self.under_way.running.insert(step.gpu().clone(), super::decide::task(step));
    }

    /// Whether a call is under way on the GPU.
    pub(super) fn is_busy_with(&self, gpu: &GpuUuid) -> bool {
        self.under_way.running.contains_key(gpu)
    }

    /// Names what attempts have made, on GPUs that answer: none of their calls is under way any more.
    pub(super) fn look_at_attempts(&mut self) {
        for attempt in std::mem::take(&mut self.attempts) {
            let Attempt { gpu, cut: (instance, part), id } = &attempt;
            if self.gpu(gpu).is_none_or(|gpu| gpu.fault.is_some()) {
                self.attempts.push(attempt);
                continue;
            }
            let made = self.find(gpu, *instance).into_iter();
            let device =
                made.flat_map(GpuInstance::devices).find(|(at, ..)| at == part).map(|(.., d)| d.clone());
            if let Some(device) = device {
                self.origins.entry(device).or_insert_with(|| id.clone());
            }
        }
    }

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
