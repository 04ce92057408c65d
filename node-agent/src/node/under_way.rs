//! Steps whose calls may be under way, or have ended without an observation since. What they change is not offered
//! meanwhile, whatever is desired by then.

use super::{Node, Task};
use crate::gpu::GpuInstance;
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::planner::Step;
use std::collections::{BTreeMap, BTreeSet};

/// A create with an unknown outcome. A call that hangs may make the slice after it is no longer desired.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    gpu: GpuUuid,
    cut: (Instance, Option<ComputeInstance>),
    pub(super) id: SliceId,
}

/// What may be changing on GPUs. A step that was decided on does not always run.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    begun: BTreeSet<Task>,
    /// The call that is under way on each GPU.
    running: BTreeMap<GpuUuid, Task>,
    unseen: BTreeSet<Task>,
}

impl UnderWay {
    /// Notes a step that was decided on.
    pub(super) fn begin(&mut self, task: Option<Task>) {
        self.begun.extend(task);
    }

    /// Notes the end of a call on a GPU. `unseen` is the task if it needs an observation.
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
}

impl Node {
    /// Notes a step that was decided on.
    pub(super) fn begin(&mut self, step: Option<&Step>) {
        self.under_way.begin(step.map(super::decide::task));
        if let Some(Step::Create { gpu, instance, part, id }) = step {
            let attempt = Attempt { gpu: gpu.clone(), cut: (*instance, *part), id: id.clone() };
            if !self.attempts.contains(&attempt) {
                self.attempts.push(attempt);
            }
        }
    }

    /// Notes that the call of the decided step is under way, so that no other begins on its GPU.
    pub fn on_started(&mut self, step: &Step) {
        self.under_way.running.insert(step.gpu().clone(), super::decide::task(step));
    }

    pub(super) fn is_busy_with(&self, gpu: &GpuUuid) -> bool {
        self.under_way.running.contains_key(gpu)
    }

    /// Names the instances that attempts have made, on GPUs that answer: none of their calls is under way any more.
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
