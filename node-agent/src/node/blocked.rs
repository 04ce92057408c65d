//! Slices that cannot be made, because their step has failed for good or they have none. They fail, so that their pods
//! are placed elsewhere.

use super::decide::task;
use super::{Node, Obstruction, Task, share};
use crate::gpu::{GpuError, GpuInstance};
use kerf_core::contract::WantedSlice;
use kerf_core::names::{GpuUuid, SliceId};
use kerf_core::planner::{self, Observed, Plan, Step};
use std::collections::BTreeSet;
use std::time::Instant;

impl Node {
    /// Marks blocked slices as failed. A destroy that failed is tried again when the next slice needs the place.
    pub(super) fn note_blocked(&mut self, observed: &Observed, plan: &Plan) {
        let due: BTreeSet<Task> = plan.steps.iter().map(task).collect();
        // Keep switches: one whose answer was lost may have been done.
        let is_of_slice = |task: &Task| matches!(task, Task::Create(_));
        self.retries.retain(|known| is_of_slice(known) || due.contains(known));
        let mut blocked = self.second_at_their_place(plan);
        blocked.extend(self.named_as_others());
        if plan.steps.iter().any(|step| self.retries.is_final(&task(step))) {
            blocked.extend(self.waiting_for_mode(plan));
            blocked.extend(self.waiting_for_place(observed, plan));
        }
        let blocked = blocked.into_iter().map(|(id, text)| (id, Obstruction { text, is_final: true }));
        self.obstacles.extend(blocked);
    }

    /// Slices whose compute instance exists, but belongs to another wanted slice.
    fn second_at_their_place(&self, plan: &Plan) -> Vec<(SliceId, String)> {
        let is_planned = |id: &SliceId| {
            let refused = plan.refused.iter().any(|(refused, _)| refused == id);
            refused
                || plan.steps.iter().any(|step| matches!(step, Step::Create { id: made, .. } if made == id))
        };
        let parts = self.desired().iter().filter(|w| w.shape.part().is_some());
        let there = |w: &&WantedSlice| {
            let mut found = self.instance_of(w).into_iter().flat_map(GpuInstance::devices);
            found.any(|(part, ..)| part == w.shape.part())
        };
        let second = parts.filter(|w| !is_planned(&w.id) && self.device_of(w).is_none()).filter(there);
        second.map(|w| (w.id.clone(), "another wanted slice has its place".to_owned())).collect()
    }

    /// Shares whose device belongs to another share that is in use: a recreated ledger has reused its name.
    fn named_as_others(&self) -> impl Iterator<Item = (SliceId, String)> {
        let shares = self.desired().iter().filter(|w| w.shape.instance().is_none());
        let named = shares.filter(|w| {
            self.device_of(w).is_none() && self.account.is_held(&share::device_id(&w.gpu, &w.id))
        });
        named.map(|w| (w.id.clone(), "another share of its name is in use".to_owned()))
    }

    /// Whether the step may be tried now. A step that has failed for good is tried again at each probe, unless it is a
    /// create, whose slice can be placed elsewhere.
    pub(super) fn may_try(&self, step: &Step, now: Instant) -> bool {
        let (task, probe) = (task(step), self.settings.probe);
        let again = || !matches!(task, Task::Create(_)) && self.retries.may_run_again(&task, probe, now);
        !self.awaits_pause(step) && (self.retries.may_run(&task, now) || again())
    }

    /// Why the GPU's MIG mode is not as desired.
    pub(super) fn switch_trouble(&self, gpu: &GpuUuid) -> Option<String> {
        let of_switch = self.retries.error(&Task::Switch(gpu.clone())).map(|(error, _)| error);
        let of_destroy = || {
            let mut errors = self.retries.last_errors().filter(|_| self.is_switching(gpu));
            errors
                .find(|(task, _)| matches!(task, Task::Destroy(of, ..) if of == gpu))
                .map(|(_, error)| error)
        };
        let error = of_switch.or_else(of_destroy)?;
        Some(format!("its MIG mode cannot be switched: {error}"))
    }

    /// The error of a planned switch or destroy that has failed for good on the GPU.
    fn last_error(&self, plan: &Plan, gpu: &GpuUuid) -> Option<&GpuError> {
        let clears = |step: &&Step| matches!(step, Step::Destroy { .. } | Step::Switch { .. });
        let steps = plan.steps.iter().filter(|step| step.gpu() == gpu).filter(clears);
        let mut errors = steps.filter_map(|step| self.retries.error(&task(step)));
        errors.find(|(_, is_final)| *is_final).map(|(error, _)| error)
    }

    /// Slices whose GPU cannot get the MIG mode that they need.
    fn waiting_for_mode(&self, plan: &Plan) -> Vec<(SliceId, String)> {
        let mut waiting = Vec::new();
        for step in plan.steps.iter().filter(|step| matches!(step, Step::Switch { .. })) {
            let Some(error) = self.last_error(plan, step.gpu()) else { continue };
            let text = format!("the GPU's MIG mode cannot be switched: {error}");
            let missing =
                self.desired().iter().filter(|w| w.gpu == *step.gpu() && self.device_of(w).is_none());
            waiting.extend(missing.map(|w| (w.id.clone(), text.clone())));
        }
        waiting
    }

    /// Slices whose place is taken by something that cannot be destroyed.
    fn waiting_for_place(&self, observed: &Observed, plan: &Plan) -> Vec<(SliceId, String)> {
        let clears =
            |step: &&Step| matches!(step, Step::Destroy { .. }) && !self.retries.is_final(&task(step));
        let mut waiting = Vec::new();
        for create in &plan.steps {
            let Step::Create { gpu, id, .. } = create else { continue };
            let Some(error) = self.last_error(plan, gpu) else { continue };
            let steps = plan.steps.iter().filter(clears).chain([create]).cloned().collect();
            let without_it = Plan { steps, refused: Vec::new() };
            if planner::check(observed, &self.to_plan(), &without_it).is_err() {
                waiting.push((id.clone(), format!("what is in its place cannot be destroyed: {error}")));
            }
        }
        waiting
    }
}
