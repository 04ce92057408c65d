//! Slices that wait for a step which has failed for good: they fail with its words, so that their pods are placed anew.

use super::decide::task;
use super::{Node, Obstruction, Task};
use crate::gpu::GpuError;
use kerf_core::names::{GpuUuid, SliceId};
use kerf_core::planner::{self, Observed, Plan, Step};
use std::collections::BTreeSet;

impl Node {
    /// Notes them. What could not be destroyed is tried anew for the next slice that needs it gone.
    pub(super) fn note_blocked(&mut self, observed: &Observed, plan: &Plan) {
        let due: BTreeSet<Task> = plan.steps.iter().map(task).collect();
        self.retries.retain(|known| !matches!(known, Task::Destroy(..)) || due.contains(known));
        let failed: Vec<&Step> = plan.steps.iter().filter(|s| self.retries.is_final(&task(s))).collect();
        if !failed.is_empty() {
            let blocked =
                self.waiting_for_mode(plan).into_iter().chain(self.waiting_for_place(observed, plan));
            let blocked = blocked.map(|(id, text)| (id, Obstruction { text, is_final: true }));
            self.obstacles.extend(blocked.collect::<Vec<_>>());
        }
    }

    /// The error of a switch or a destroy of the plan's that has failed for good on the GPU.
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
                self.spec.slices.iter().filter(|w| w.gpu == *step.gpu() && self.device_of(w).is_none());
            waiting.extend(missing.map(|w| (w.id.clone(), text.clone())));
        }
        waiting
    }

    /// Slices in whose place something is that cannot be destroyed.
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
