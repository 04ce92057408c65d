//! From all that is known to what is done next: the lists for the kubelet, one step, the status.
//!
//! Steps run one at a time and the plan is made anew after each, so that it always rests on the newest spec and the
//! newest holders. A plan that the checker refuses is not run.

use super::advertise::{DevicesByName, Listing};
use super::share::{self, Share};
use super::{Node, Obstruction, Task};
use crate::access::AccessGrant;
use crate::gpu::Gpu;
use kerf_core::contract::{GpuNodeStatus, Shape};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::offer::{ExistingSlice, offer};
use kerf_core::planner::{self, Observed, Obstacle, Plan, Step};
use kerf_core::resource::ResourceName;
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;
use std::time::Instant;

/// What follows from the agent's knowledge.
#[derive(Debug)]
pub struct Decision {
    /// The list of each name, for the kubelet.
    pub lists: BTreeMap<ResourceName, Vec<ListedDevice>>,
    /// What the kubelet should say that it may hand out, once it has taken the lists.
    pub healthy: DevicesByName,
    /// The step to run now.
    pub step: Option<Step>,
    /// The kubelet's account of holders is wanted now.
    pub wants_holders: bool,
    /// GPUs and holders should be looked at again soon, because what was seen may be out of date.
    pub wants_observation: bool,
    /// When to decide anew if nothing happens before.
    pub wake: Option<Instant>,
    /// GpuNode.status.
    pub status: GpuNodeStatus,
}

/// One device of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedDevice {
    /// Its id.
    pub id: DeviceId,
    /// Whether the kubelet may hand it out.
    pub healthy: bool,
    /// What a container gets with it; `None` for a device that nobody gets. A kubelet that did not know yet may still
    /// have picked an unhealthy one.
    pub grant: Option<Grant>,
    /// The NUMA node that its GPU is close to, where there is one.
    pub numa: Option<u32>,
}

/// What a container gets with a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Its GPU.
    pub gpu: GpuUuid,
    /// The slice, for people.
    pub slice: String,
    /// How it is shared, for a share.
    pub share: Option<ShareGrant>,
    /// How it is opened.
    pub access: AccessGrant,
}

/// A share of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareGrant {
    /// How it is made.
    pub kind: Kind,
    /// Its memory.
    pub memory: MemoryMib,
    /// The GPU's memory.
    pub of: MemoryMib,
}

impl Node {
    /// Decides.
    pub fn decide(&mut self, now: Instant) -> Decision {
        // While holders or GPUs are unknown nothing is cut: what cannot be seen counts as held.
        let knows_holders = self.account.is_known() && self.health.pods.is_well();
        let knows_all = knows_holders && self.health.nvml.is_well() && self.health.spec.is_well();
        self.adopt_shares();
        let init = self.init_held();
        self.account.take_init(init);
        self.note_kept_promises();
        if knows_all {
            self.before = None;
        }
        let steps = if knows_all { self.plan(now) } else { Vec::new() };
        let existing = self.existing();
        self.remember_origins();
        let offered = offer(&existing);
        if knows_all {
            self.advertised.offer(&offered.healthy, now);
        }
        let (look, next_look) = self.account.look(now);
        let next_drop = self.advertised.drop_ids(&self.account, now);
        let step = self.next_step(steps, now);
        let revoked = self.advertised.revoked_at(now).then_some(now);
        let held = self.obstacles.values().any(|o| !o.is_final);
        Decision {
            lists: self.lists(&existing),
            healthy: self.advertised.healthy(),
            step,
            wants_holders: look || self.advertised.wants_account(&self.account),
            wants_observation: held,
            wake: [revoked, next_look, next_drop, self.retries.next(now)].into_iter().flatten().min(),
            status: self.status(&offered.waiting),
        }
    }

    /// The plan's steps on GPU instances. Shares are only accounted, so theirs are done at once.
    fn plan(&mut self, now: Instant) -> Vec<Step> {
        loop {
            let observed = self.observed();
            let plan = planner::plan(&observed, &self.spec.slices);
            if let Err(violation) = planner::check(&observed, &self.spec.slices, &plan) {
                tracing::error!(%violation, steps = ?plan.steps, "a plan was refused by its checker; nothing is cut");
                self.obstacles.clear();
                return Vec::new();
            }
            if !self.run_share_steps(&plan, now) {
                self.note_obstacles(&plan, now);
                return plan.steps.into_iter().filter(|s| self.is_allowed_alone(&observed, s)).collect();
            }
        }
    }

    /// Whether the step is legal without those before it, which may have to wait.
    fn is_allowed_alone(&self, observed: &Observed, step: &Step) -> bool {
        let alone = Plan { steps: vec![step.clone()], refused: Vec::new() };
        planner::check(observed, &self.spec.slices, &alone).is_ok()
    }

    /// Starts and ends shares. Whether anything changed.
    fn run_share_steps(&mut self, plan: &Plan, now: Instant) -> bool {
        let mut changed = false;
        for step in &plan.steps {
            match step {
                Step::Start { gpu, id, shape } => {
                    tracing::info!(%gpu, slice = %id, %shape, "share started");
                    self.shares.insert(id.clone(), Share { gpu: gpu.clone(), shape: *shape });
                    changed = true;
                }
                Step::End { gpu, id } if self.may_go(&share::device_id(gpu, id), now) => {
                    tracing::info!(%gpu, slice = %id, "share ended");
                    self.shares.remove(id);
                    changed = true;
                }
                Step::End { .. } | Step::Create { .. } | Step::Destroy { .. } => {}
            }
        }
        changed
    }

    /// Whether no container has the device or can get it: the kubelet does not offer it, was asked for holders after it
    /// had let go of it, and a container for which it picked the device before that has been refused it since an
    /// earlier decision. Refuses it from now on if only that is missing.
    fn may_go(&mut self, device: &DeviceId, now: Instant) -> bool {
        let quiet = self.advertised.quiet_since(device);
        let asked = self.account.asked();
        let is_free =
            !self.account.is_held(device) && quiet.zip(asked).is_some_and(|(quiet, asked)| asked > quiet);
        is_free && self.advertised.revoke(device, now)
    }

    fn note_obstacles(&mut self, plan: &Plan, now: Instant) {
        let tasks: Vec<_> = plan.refused.iter().map(|(id, _)| Task::Create(id.clone())).collect();
        let overdue = self.retries.out_of_reach(&tasks, now);
        let obstruction = |id: &SliceId, obstacle: &Obstacle| {
            let at_once = matches!(obstacle, Obstacle::NoSuchGpu(_) | Obstacle::WrongMode);
            let is_final = at_once || overdue.contains(&Task::Create(id.clone()));
            Obstruction { text: obstacle.to_string(), is_final }
        };
        self.obstacles = plan.refused.iter().map(|(id, o)| (id.clone(), obstruction(id, o))).collect();
    }

    /// The first step that may run now.
    fn next_step(&mut self, steps: Vec<Step>, now: Instant) -> Option<Step> {
        steps.into_iter().find(|step| match step {
            Step::Create { id, .. } => self.retries.may_run(&Task::Create(id.clone()), now),
            Step::Destroy { gpu, instance } => {
                let task = Task::Destroy(gpu.clone(), *instance);
                let device = self.find(gpu, *instance).and_then(|i| i.device()).cloned();
                self.retries.may_run(&task, now) && device.is_none_or(|d| self.may_go(&d, now))
            }
            Step::Start { .. } | Step::End { .. } => false,
        })
    }

    /// Remembers which slice each MIG device was made for, and forgets devices that are gone.
    fn remember_origins(&mut self) {
        let named: Vec<_> = self
            .spec
            .slices
            .iter()
            .filter_map(|w| Some((self.instance_of(w)?.device()?.clone(), w.id.clone())))
            .collect();
        self.origins.extend(named);
        if self.health.nvml.is_well() {
            let there: Vec<_> =
                self.gpus.iter().flat_map(|g| &g.instances).filter_map(|i| i.device().cloned()).collect();
            self.origins.retain(|device, _| there.contains(device));
        }
    }

    fn lists(&self, existing: &[ExistingSlice]) -> BTreeMap<ResourceName, Vec<ListedDevice>> {
        let grants: BTreeMap<&DeviceId, &ExistingSlice> = existing.iter().map(|s| (&s.device, s)).collect();
        let granted = |id: &DeviceId| grants.get(id).and_then(|slice| self.grant(slice));
        let listed = |(id, listing): (&DeviceId, Listing)| ListedDevice {
            id: id.clone(),
            healthy: listing == Listing::Healthy,
            grant: if listing == Listing::Revoked { None } else { granted(id) },
            numa: None,
        };
        self.advertised.lists().map(|(name, devices)| (name, devices.map(listed).collect())).collect()
    }

    fn grant(&self, slice: &ExistingSlice) -> Option<Grant> {
        let gpu = self.gpu_of(&slice.device)?;
        let share = match slice.shape {
            Shape::Mig { .. } => None,
            Shape::Mps { size_gb } | Shape::TimeSlicing { size_gb } => {
                Some(ShareGrant { kind: slice.shape.kind(), memory: size_gb.share_memory(), of: gpu.memory })
            }
        };
        let text = format!("{} {} on {}", slice.id, slice.shape, gpu.uuid);
        Some(Grant { gpu: gpu.uuid.clone(), slice: text, share, access: AccessGrant::default() })
    }

    fn gpu_of(&self, device: &DeviceId) -> Option<&Gpu> {
        if let Some((uuid, _)) = share::slice_of(device) {
            return self.gpu(&uuid);
        }
        self.gpus.iter().find(|gpu| gpu.instances.iter().any(|i| i.device() == Some(device)))
    }
}
