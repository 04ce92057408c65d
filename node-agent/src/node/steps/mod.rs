//! The steps on GPUs: their failures, the calls under way, and the slices that they cannot reach.

mod blocked;
mod obstruction;
mod retry;
mod under_way;

use super::facts::Facts;
use super::service::{Service, Trouble};
use crate::gpu::GpuError;
use blocked::Blocked;
use kerf_core::contract::WantedSlice;
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::offer::ExistingSlice;
use kerf_core::planner::{Observed, Plan, Step};
pub(super) use obstruction::Obstruction;
use retry::{Retries, UNREACHABLE_TIMEOUT};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use under_way::UnderWay;

/// How long a reserved slice may exist without being served before that counts as a failure. An MPS daemon starts in a
/// second or two, and a hung one is detected and restarted within ten.
const SERVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A step whose failures are counted for its retries.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Switch(GpuUuid),
    Create(SliceId),
    Destroy(GpuUuid, Instance, Option<ComputeInstance>),
}

/// The key by which a step's failures are counted.
fn task(step: &Step) -> Task {
    match step {
        Step::Switch { gpu, .. } => Task::Switch(gpu.clone()),
        Step::Create { id, .. } | Step::Start { id, .. } | Step::End { id, .. } => Task::Create(id.clone()),
        Step::Destroy { gpu, instance, part } => Task::Destroy(gpu.clone(), *instance, *part),
    }
}

#[derive(Debug, Default)]
pub(super) struct Steps {
    retries: Retries<Task>,
    under_way: UnderWay,
    obstacles: BTreeMap<SliceId, Obstruction>,
    /// Failures to serve slices that exist.
    serving: Retries<SliceId>,
    unserved: BTreeMap<SliceId, Obstruction>,
}

impl Steps {
    /// Records a step that was decided on.
    pub(super) fn begin(&mut self, step: &Step) {
        self.under_way.begin(task(step));
    }

    /// Records that the call of the decided step is under way, so that no other begins on its GPU.
    pub(super) fn start(&mut self, step: &Step) {
        self.under_way.start(step.gpu().clone(), task(step));
    }

    /// Records the end of a call. What a create makes is known at once, and what another step has changed only if it
    /// succeeds or after an observation.
    pub(super) fn end<T>(
        &mut self,
        gpu: &GpuUuid,
        task: Task,
        result: Result<T, GpuError>,
        now: Instant,
    ) -> Option<T> {
        let needs_observation = match &task {
            Task::Create(_) => false,
            Task::Destroy(..) => result.is_err(),
            // The next observation shows what the GPU offers in its new mode.
            Task::Switch(_) => true,
        };
        self.under_way.end(gpu, needs_observation.then(|| task.clone()));
        match result {
            Ok(value) => {
                self.retries.succeeded(&task);
                Some(value)
            }
            Err(error) => {
                self.retries.failed(task, error, now);
                None
            }
        }
    }

    /// Records that a step, or all decided ones, did not run because the checkpoint could not be written.
    pub(super) fn skip(&mut self, gpu: Option<&GpuUuid>) {
        match gpu {
            Some(gpu) => self.under_way.end(gpu, None),
            None => self.under_way.forget_begun(),
        }
    }

    /// Takes that the GPUs were observed without a call under way.
    pub(super) fn see(&mut self) {
        self.under_way.see();
    }

    /// Drops the failures of slices that are no longer desired.
    pub(super) fn retain(&mut self, desired: &[WantedSlice]) {
        self.retries.retain(|task| match task {
            Task::Create(id) => desired.iter().any(|slice| slice.id == *id),
            Task::Destroy(..) | Task::Switch(_) => true,
        });
    }

    /// Drops the failures of switches, because a new policy may make one succeed.
    pub(super) fn retry_switches(&mut self) {
        self.retries.retain(|task| !matches!(task, Task::Switch(_)));
    }

    /// Records why the planner refuses slices.
    pub(super) fn set_obstacles(&mut self, facts: &Facts, plan: &Plan, now: Instant) {
        let tasks: Vec<_> = plan.refused.iter().map(|(id, _)| Task::Create(id.clone())).collect();
        let overdue = self.retries.unreachable(&tasks, UNREACHABLE_TIMEOUT, now);
        let refused = plan.refused.iter().map(|(id, obstacle)| {
            let is_overdue = overdue.contains(&Task::Create(id.clone()));
            (id.clone(), Obstruction::new(facts, id, obstacle, is_overdue))
        });
        self.obstacles = refused.collect();
    }

    /// Forgets all obstacles, because without a plan it is unknown which slices have one.
    pub(super) fn forget_obstacles(&mut self) {
        self.obstacles.clear();
    }

    /// Marks blocked slices as failed. A destroy that failed is tried again when the next slice needs the place.
    pub(super) fn set_blocked(&mut self, facts: &Facts, observed: &Observed, plan: &Plan) {
        let due: BTreeSet<Task> = plan.steps.iter().map(task).collect();
        // Keep switches: one whose answer was lost may have been done.
        let is_of_slice = |task: &Task| matches!(task, Task::Create(_));
        self.retries.retain(|known| is_of_slice(known) || due.contains(known));
        let blocked = Blocked { facts, retries: &self.retries, observed, plan }.slices();
        let blocked = blocked.into_iter().map(|(id, text)| (id, Obstruction { text, is_final: true }));
        self.obstacles.extend(blocked);
    }

    /// Records which slices exist and cannot be used by a new pod or, if the GPU is at fault, by any pod. Returns their
    /// devices, with those that are being destroyed.
    pub(super) fn set_unserved(
        &mut self,
        existing: &[ExistingSlice],
        service: &Service<'_>,
        now: Instant,
    ) -> BTreeSet<DeviceId> {
        let mut devices = self.under_way.being_destroyed(&service.facts.inventory);
        let mut troubles = BTreeMap::new();
        let orphaned = service.facts.occupancy().orphaned();
        for slice in existing {
            let is_held = slice.held_as.is_some();
            let is_orphaned = !is_held && orphaned.contains(&slice.id);
            let trouble = service.trouble(slice, is_orphaned).or_else(|| self.refusal(slice));
            let Some(Trouble { text, is_final }) = trouble else { continue };
            devices.insert(slice.device.clone());
            if (slice.reservation.is_some() || is_orphaned) && !is_held {
                // A slice in use is skipped: if its reservation were dropped, the extender would lose track of it.
                troubles.insert(slice.id.clone(), (text, is_final && !is_orphaned));
            }
        }
        troubles.extend(service.facts.offering().taken().map(|(id, text)| (id, (text, false))));
        let ids: Vec<SliceId> = troubles.keys().cloned().collect();
        let overdue = self.serving.unreachable(&ids, SERVE_TIMEOUT, now);
        let unserved = troubles.into_iter().map(|(id, (text, at_once))| {
            let is_final = at_once || overdue.contains(&id);
            (id, Obstruction { text, is_final })
        });
        self.unserved = unserved.collect();
        devices
    }

    /// Why the plan keeps no place for the existing slice of a GPU instance: a slice with precedence needs the instance
    /// in another form.
    fn refusal(&self, slice: &ExistingSlice) -> Option<Trouble> {
        slice.shape.instance().filter(|_| slice.held_as.is_none())?;
        let text = self.obstacles.get(&slice.id)?.text.clone();
        Some(Trouble { text, is_final: false })
    }

    pub(super) fn is_busy_with(&self, gpu: &GpuUuid) -> bool {
        self.under_way.is_busy_with(gpu)
    }

    pub(super) fn is_being_switched(&self, gpu: &GpuUuid) -> bool {
        self.under_way.is_being_switched(gpu)
    }

    /// Whether the step may be tried now. A step that has failed for good is tried again at each `probe`, unless it is
    /// a create, whose slice can be placed elsewhere.
    pub(super) fn may_try(&self, step: &Step, probe: Duration, now: Instant) -> bool {
        let task = task(step);
        let again = || !matches!(task, Task::Create(_)) && self.retries.may_run_again(&task, probe, now);
        self.retries.may_run(&task, now) || again()
    }

    /// Whether a step is left that has not failed for good.
    pub(super) fn has_open(&self, steps: &[Step]) -> bool {
        steps.iter().any(|step| !self.retries.is_final(&task(step)))
    }

    /// The last error of the step, and whether the step has failed for good.
    pub(super) fn error(&self, step: &Step) -> Option<(&GpuError, bool)> {
        self.retries.error(&task(step))
    }

    /// The last error of the slice's creation, and whether it has failed for good.
    pub(super) fn create_error(&self, id: &SliceId) -> Option<(&GpuError, bool)> {
        self.retries.error(&Task::Create(id.clone()))
    }

    /// Why the GPU's MIG mode is not as desired. A destroy can only be the reason if the mode is about to be switched.
    pub(super) fn switch_trouble(&self, gpu: &GpuUuid, is_switching: bool) -> Option<String> {
        let of_switch = self.retries.error(&Task::Switch(gpu.clone())).map(|(error, _)| error);
        let of_destroy = || {
            let mut errors = self.retries.last_errors().filter(|_| is_switching);
            errors
                .find(|(task, _)| matches!(task, Task::Destroy(of, ..) if of == gpu))
                .map(|(_, error)| error)
        };
        let error = of_switch.or_else(of_destroy)?;
        Some(format!("its MIG mode cannot be switched: {error}"))
    }

    /// Why no legal step can reach the slice.
    pub(super) fn obstacle(&self, id: &SliceId) -> Option<&Obstruction> {
        self.obstacles.get(id)
    }

    /// Why the slice exists and is not served.
    pub(super) fn unserved(&self, id: &SliceId) -> Option<&Obstruction> {
        self.unserved.get(id)
    }

    /// All slices that are not reached or not served, with the reason.
    pub(super) fn missed(&self) -> impl Iterator<Item = String> {
        self.obstacles.iter().chain(&self.unserved).map(|(id, o)| format!("{id}: {}", o.text))
    }

    /// Whether an obstacle may go by itself.
    pub(super) fn has_passing_obstacle(&self) -> bool {
        self.obstacles.values().any(|o| !o.is_final)
    }

    /// When a step may be tried again, or a slice counts as failed.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        [self.retries.next(now), self.serving.next(now)].into_iter().flatten().min()
    }
}
