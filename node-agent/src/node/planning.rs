//! Plans the steps, and carries out those of shares, which need no call. A plan that the checker rejects does not run.

use super::advertise::Advertised;
use super::daemons::MpsDaemons;
use super::device_ids::{replica_device, share_device};
use super::facts::Facts;
use super::pausing::Pausing;
use super::slices::{Share, undivided};
use super::steps::Steps;
use crate::gpu::Gpu;
use kerf_core::contract::Shape;
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::planner::{self, Observed, Plan, Step};
use std::time::{Duration, Instant};

/// Major compute capability of GPUs that need a reset to switch MIG mode (Ampere).
const WITH_RESET: u32 = 8;

pub(super) struct Planner<'a> {
    pub(super) facts: &'a mut Facts,
    pub(super) advertised: &'a mut Advertised,
    pub(super) steps: &'a mut Steps,
    pub(super) mps: &'a MpsDaemons,
    /// During recovery no share ends, because other holders are not known yet.
    pub(super) is_recovering: bool,
    pub(super) now: Instant,
}

impl Planner<'_> {
    /// Plans the steps on GPU instances. Steps of shares are carried out at once.
    pub(super) fn plan(&mut self) -> Vec<Step> {
        loop {
            let observed = self.facts.observer().observed();
            let wanted = self.facts.rules().to_plan();
            let plan = planner::plan(&observed, &wanted);
            if let Err(violation) = planner::check(&observed, &wanted, &plan) {
                tracing::error!(%violation, steps = ?plan.steps, "a plan was refused by its checker; nothing is cut");
                self.steps.forget_obstacles();
                return Vec::new();
            }
            if !self.run_share_steps(&observed, &plan) {
                self.steps.set_obstacles(self.facts, &plan, self.now);
                self.steps.set_blocked(self.facts, &observed, &plan);
                return plan.steps.into_iter().filter(|s| self.is_allowed_alone(&observed, s)).collect();
            }
        }
    }

    /// Whether the step is legal without those before it, which may have to wait.
    fn is_allowed_alone(&self, observed: &Observed, step: &Step) -> bool {
        let alone = Plan { steps: vec![step.clone()], refused: Vec::new() };
        planner::check(observed, &self.facts.rules().to_plan(), &alone).is_ok()
    }

    /// Starts or ends the next share that is ready, and returns whether there was one. Then everything is planned
    /// again: what was to end before may still exist, and two starts that are legal alone may not be legal together.
    fn run_share_steps(&mut self, observed: &Observed, plan: &Plan) -> bool {
        plan.steps.iter().any(|step| match step {
            Step::Start { gpu, id, shape } => {
                self.is_allowed_alone(observed, step) && self.start(gpu, id, *shape)
            }
            Step::End { gpu, id } => !self.is_recovering && self.end(gpu, id),
            Step::Switch { .. } | Step::Create { .. } | Step::Destroy { .. } => false,
        })
    }

    /// Starts a share or a replica if it can be served now.
    fn start(&mut self, gpu: &GpuUuid, id: &SliceId, shape: Shape) -> bool {
        let device = if shape.replica().is_some() {
            let Some(device) = self.startable_replica(gpu, shape) else { return false };
            tracing::info!(%gpu, slice = %id, %shape, "replica started");
            device
        } else {
            let Some(device) = self.startable_share(gpu, id, shape) else { return false };
            tracing::info!(%gpu, slice = %id, %shape, "share started");
            device
        };
        self.facts.slices.start(device, Share { gpu: gpu.clone(), id: id.clone(), shape });
        true
    }

    /// The id under which a share can be served now; `None` while what was to end first still exists: its earlier form,
    /// or the MPS daemon of an ended share.
    fn startable_share(&self, gpu: &GpuUuid, id: &SliceId, shape: Shape) -> Option<DeviceId> {
        let device = share_device(gpu, id);
        let is_blocked = shape.kind() != Kind::Mps && self.mps.has(gpu)
            || self.steps.is_being_switched(gpu)
            || self.facts.slices.shares().contains_key(&device);
        (!is_blocked).then_some(device)
    }

    /// The id under which a replica of this shape can be served now; `None` while a container may still get the whole
    /// MIG device.
    fn startable_replica(&mut self, gpu: &GpuUuid, shape: Shape) -> Option<DeviceId> {
        let of = undivided(self.facts.inventory.find(gpu, shape.instance()?)?)?.clone();
        let is_free = !self.advertised.is_listed(&of) || self.may_go(&of);
        is_free.then_some(replica_device(&of, shape.replica()?))
    }

    /// Ends a share that no container has or can get.
    fn end(&mut self, gpu: &GpuUuid, id: &SliceId) -> bool {
        let Some(device) = self.facts.placement().share_named(gpu, id) else { return false };
        let may_go = self.may_go(&device);
        if may_go {
            tracing::info!(%gpu, slice = %id, "share ended");
            self.facts.slices.end(&device);
        }
        may_go
    }

    /// Whether no container has the device or can get it. Three things must hold: the kubelet does not offer it;
    /// holders were listed after that; and since an earlier decision the device is refused to any container for which
    /// the kubelet picked it before. If only the last is missing, it is refused from now on.
    fn may_go(&mut self, device: &DeviceId) -> bool {
        let account = &self.facts.account;
        let quiet = self.advertised.quiet_since(device, self.now);
        let is_free = !account.is_held(device)
            && quiet.zip(account.asked()).is_some_and(|(quiet, asked)| asked > quiet);
        is_free && self.advertised.revoke(device, self.now)
    }

    /// The first step that may run now, on a GPU without a step under way.
    pub(super) fn next_step(&mut self, steps: Vec<Step>, pausing: &Pausing, probe: Duration) -> Option<Step> {
        steps.into_iter().find(|step| {
            let waits_for_pause = pausing.is_beginning() && self.needs_pause(step);
            let may_try = !waits_for_pause && self.steps.may_try(step, probe, self.now);
            let may_try = may_try && !self.steps.is_busy_with(step.gpu());
            match step {
                // The mode must not be switched with a daemon: its server is a process on the GPU, and its compute mode
                // may differ.
                Step::Switch { gpu, .. } => may_try && !self.mps.has(gpu),
                Step::Create { .. } => may_try,
                Step::Destroy { gpu, instance, part } => {
                    let going = self.facts.inventory.devices_at(gpu, *instance, *part);
                    let going: Vec<DeviceId> = going.cloned().collect();
                    may_try && going.iter().all(|d| self.may_go(d))
                }
                Step::Start { .. } | Step::End { .. } => false,
            }
        })
    }

    /// Whether the programs that a pause ends block the step. A step that has failed for good in a pause has another
    /// obstacle, so DCGM is not stopped for each further try.
    pub(super) fn needs_pause(&self, step: &Step) -> bool {
        match (self.steps.error(step), step) {
            (Some((_, true)), _) => false,
            // Even if the programs do not prevent a switch, they would afterwards work with outdated data about the
            // GPU.
            (_, Step::Switch { gpu, .. }) => {
                let rules = self.facts.rules();
                let changes_now = |gpu: &Gpu| gpu.capability.0 != WITH_RESET || rules.may_reset(&gpu.uuid);
                !self.mps.has(gpu) && self.facts.inventory.gpu(gpu).is_some_and(changes_now)
            }
            (error, _) => error.is_some_and(|(error, _)| error.is_held_by_unlisted()),
        }
    }
}
