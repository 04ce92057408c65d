//! Slices that cannot be made, because their step has failed for good or they have none. They fail, so that their pods
//! are placed elsewhere.

use super::retry::Retries;
use super::{Task, task};
use crate::gpu::{GpuError, GpuInstance};
use crate::node::device_ids::share_device;
use crate::node::facts::Facts;
use kerf_core::contract::WantedSlice;
use kerf_core::names::{GpuUuid, SliceId};
use kerf_core::planner::{self, Observed, Plan, Step};

pub(super) struct Blocked<'a> {
    pub(super) facts: &'a Facts,
    pub(super) retries: &'a Retries<Task>,
    pub(super) observed: &'a Observed,
    pub(super) plan: &'a Plan,
}

impl Blocked<'_> {
    /// The blocked slices, and why.
    pub(super) fn slices(&self) -> Vec<(SliceId, String)> {
        let mut blocked = self.second_at_their_place();
        blocked.extend(self.named_as_others());
        if self.plan.steps.iter().any(|step| self.retries.is_final(&task(step))) {
            blocked.extend(self.waiting_for_mode());
            blocked.extend(self.waiting_for_place());
        }
        blocked
    }

    /// Slices whose compute instance exists, but belongs to another desired slice.
    fn second_at_their_place(&self) -> Vec<(SliceId, String)> {
        let is_create =
            |step: &Step, id: &SliceId| matches!(step, Step::Create { id: made, .. } if made == id);
        let is_planned = |id: &SliceId| {
            let is_refused = self.plan.refused.iter().any(|(refused, _)| refused == id);
            is_refused || self.plan.steps.iter().any(|step| is_create(step, id))
        };
        let placement = self.facts.placement();
        let parts = placement.desired().iter().filter(|w| w.shape.part().is_some());
        let there = |w: &&WantedSlice| {
            let found = self.facts.inventory.instance_for(w);
            found.into_iter().flat_map(GpuInstance::devices).any(|(part, ..)| part == w.shape.part())
        };
        let second = parts.filter(|w| !is_planned(&w.id) && placement.device_of(w).is_none()).filter(there);
        second.map(|w| (w.id.clone(), "another desired slice has its place".to_owned())).collect()
    }

    /// Shares whose device belongs to another share that is in use: a recreated ledger has reused its name.
    fn named_as_others(&self) -> impl Iterator<Item = (SliceId, String)> {
        let placement = self.facts.placement();
        let shares = placement.desired().iter().filter(|w| w.shape.instance().is_none());
        let is_held = |w: &WantedSlice| self.facts.account.is_held(&share_device(&w.gpu, &w.id));
        let named = shares.filter(move |w| placement.device_of(w).is_none() && is_held(w));
        named.map(|w| (w.id.clone(), "another share of its name is in use".to_owned()))
    }

    /// The error of a planned switch or destroy that has failed for good on the GPU.
    fn last_error(&self, gpu: &GpuUuid) -> Option<&GpuError> {
        let clears = |step: &&Step| matches!(step, Step::Destroy { .. } | Step::Switch { .. });
        let steps = self.plan.steps.iter().filter(|step| step.gpu() == gpu).filter(clears);
        let mut errors = steps.filter_map(|step| self.retries.error(&task(step)));
        errors.find(|(_, is_final)| *is_final).map(|(error, _)| error)
    }

    /// Slices whose GPU cannot get the MIG mode that they need.
    fn waiting_for_mode(&self) -> Vec<(SliceId, String)> {
        let mut waiting = Vec::new();
        let placement = self.facts.placement();
        for step in self.plan.steps.iter().filter(|step| matches!(step, Step::Switch { .. })) {
            let Some(error) = self.last_error(step.gpu()) else { continue };
            let text = format!("the GPU's MIG mode cannot be switched: {error}");
            let here = placement.desired().iter().filter(|w| w.gpu == *step.gpu());
            let missing = here.filter(|w| placement.device_of(w).is_none());
            waiting.extend(missing.map(|w| (w.id.clone(), text.clone())));
        }
        waiting
    }

    /// Slices whose place is taken by something that cannot be destroyed.
    fn waiting_for_place(&self) -> Vec<(SliceId, String)> {
        let clears =
            |step: &&Step| matches!(step, Step::Destroy { .. }) && !self.retries.is_final(&task(step));
        let wanted = self.facts.rules().to_plan();
        let mut waiting = Vec::new();
        for create in &self.plan.steps {
            let Step::Create { gpu, id, .. } = create else { continue };
            let Some(error) = self.last_error(gpu) else { continue };
            let steps = self.plan.steps.iter().filter(clears).chain([create]).cloned().collect();
            let without_it = Plan { steps, refused: Vec::new() };
            if planner::check(self.observed, &wanted, &without_it).is_err() {
                waiting.push((id.clone(), format!("what is in its place cannot be destroyed: {error}")));
            }
        }
        waiting
    }
}
