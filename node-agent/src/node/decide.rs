//! Turns everything that is known into a decision: the lists for the kubelet, one step, the status.
//!
//! One step runs at a time on each GPU. The plan is recomputed after each step, so that it always uses the current
//! desired state and the newest holders. A plan that the checker rejects does not run.

use super::advertise::DevicesByName;
use super::retry::OUT_OF_REACH;
use super::share::{self, Share};
use super::{
    LetGo, Node, NodeEvent, Obstruction, Pause, Restored, Spared, Task, WantedDaemon, orphaned, unresponsive,
};
use crate::access::{Access, AccessGrant};
use crate::gpu::GpuInstance;
use crate::gpu::limits::Limits;
use kerf_core::closeness::Closeness;
use kerf_core::contract::{GpuNodeStatus, SliceLength};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::offer::ExistingSlice;
use kerf_core::planner::{self, Observed, Obstacle, Plan, Step};
use kerf_core::resource::ResourceName;
use kerf_core::units::{ComputePercent, MemoryMib};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a reserved slice may exist without being served before that counts as a failure. An MPS daemon starts in a
/// second or two, and a hung one is detected and restarted within ten.
const SERVE_WITHIN: Duration = Duration::from_secs(20);

/// How many names of MIG devices are remembered, including those of devices that are gone.
const MOST_ORIGINS: usize = 4096;

#[derive(Debug)]
pub struct Decision {
    pub lists: BTreeMap<ResourceName, Vec<ListedDevice>>,
    /// The devices that the kubelet should show as allocatable once it has processed the lists.
    pub healthy: DevicesByName,
    /// Set if the agent may release the driver for its upgrade.
    pub let_go: Option<LetGo>,
    /// The step to run now. Once it is under way there may be another, on another GPU.
    pub step: Option<Step>,
    /// What must be recorded on the node's disk before the step runs.
    pub record: Restored,
    /// Desired state for the slices that exist. `None` until these are known, so that no holder loses anything before.
    pub kept: Option<Kept>,
    pub lengths: BTreeMap<GpuUuid, SliceLength>,
    pub pause: Pause,
    /// Whether pods that the kubelet has rejected are removed.
    pub remove_rejected: bool,
    /// What to report as Kubernetes Events.
    pub notes: Vec<NodeEvent>,
    /// Pods that the policy has evicted.
    pub evict: Vec<(PodKey, PodUid)>,
    /// Pods with reservations for which a look-up must find out whether they are bound, and where.
    pub look_up: BTreeMap<PodUid, PodKey>,
    /// Whether a new list of holders is needed now.
    pub wants_holders: bool,
    /// Whether GPUs and holders should be observed soon, because the known state may be out of date.
    pub wants_observation: bool,
    /// When the next decision is due if no event comes before.
    pub wake: Option<Instant>,
    pub status: GpuNodeStatus,
}

/// Desired state on the node for the slices that exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub daemons: BTreeMap<GpuUuid, WantedDaemon>,
    /// What each device needs so that containers can open it.
    pub reach: BTreeMap<DeviceId, Access>,
    /// The limits that the driver should set on pods' GPU memory.
    pub limits: Limits,
    /// Devices, daemons and limits that stay as they are besides the wanted ones.
    pub spared: Spared,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedDevice {
    pub id: DeviceId,
    pub healthy: bool,
    /// Whether a pod has it, as far as is known. A kubelet that has freed it already may allocate it before the agent
    /// learns that.
    pub held: bool,
    /// What a container gets with it; `None` if no container gets it. A kubelet with an older list may still pick an
    /// unhealthy device.
    pub grant: Option<Grant>,
    /// The pod that has reserved it, if any.
    pub reserved_for: Option<PodUid>,
    /// The NUMA node that its GPU is close to; `None` if there is none.
    pub numa: Option<u32>,
    pub closeness: Closeness,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub gpu: GpuUuid,
    /// The slice's name, for people.
    pub slice: String,
    /// How it is shared; `None` if it is not a share.
    pub share: Option<ShareGrant>,
    pub access: AccessGrant,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareGrant {
    pub kind: Kind,
    pub memory: MemoryMib,
    /// The memory of the whole GPU.
    pub of: MemoryMib,
    /// The compute part, if it was requested by itself or if compute is not limited. Otherwise it is the same part as the
    /// memory.
    pub compute: Option<ComputePercent>,
}

impl Node {
    pub fn decide(&mut self, now: Instant) -> Decision {
        let silent = self.await_silent(now);
        let next_due = self.follow_pods(now);
        let leaderless = self.await_leader(now);
        self.recall_assigned(now);
        let taken_over = self.await_takeover(now);
        // While holders or GPUs are unknown nothing is cut: a device counts as held until it is known to be free.
        let knows_holders =
            self.account.is_known() && self.health.pods.is_well() && self.health.policy.is_well();
        self.knew |= knows_holders && self.health.nvml.is_well();
        let is_shut = self.is_closed() || self.takeover_trouble().is_some();
        let knows_all = knows_holders && self.health.nvml.is_well() && !is_shut;
        self.recall_shares();
        self.adopt_shares();
        self.adopt_replicas();
        if knows_holders {
            self.forget_ended_shares();
        }
        self.occupy();
        self.note_bindings();
        // With known holders the held devices are known too, whether or not another manager is here.
        if knows_holders && self.health.nvml.is_well() && (self.others.is_some() || knows_all) {
            self.awaited.clear();
        }
        let next_recovery = self.recover(now);
        let steps = self.steps(knows_all, now);
        let mut existing = self.existing();
        self.remember_origins();
        self.tell_mismatches();
        let mut unserved = self.note_unserved(&existing, now);
        unserved.extend(self.being_destroyed());
        let mut offered = self.offered(&mut existing, &unserved);
        if knows_all {
            self.grants = true;
            self.advertised.offer(&offered.healthy, now);
        } else if self.health.nvml.is_well() && !self.is_closed() {
            // A holder keeps its device listed, because its container may restart.
            offered
                .healthy
                .values_mut()
                .for_each(|devices| devices.retain(|d| self.account.holder(d).is_some()));
            self.advertised.add(&offered.healthy, now);
        }
        let (look, next_look) = self.account.look(now);
        let next_drop = self.advertised.drop_ids(&self.account, now);
        let record_again = self.unrecorded.as_ref().map(|(_, at)| *at).filter(|at| *at > now);
        self.note_pause(&steps, now);
        // After a failed write of the checkpoint no step runs before the next try, because each step is recorded first.
        let step = if record_again.is_some() { None } else { self.next_step(steps, now) };
        self.begin(step.as_ref());
        if step.is_some() {
            self.extend_pause(now);
        }
        let (pause, pause_ends) = self.pause();
        // The condition stays until a step has been recorded again.
        self.unrecorded.take_if(|(_, at)| *at <= now && step.is_none());
        let revoked = self.advertised.revoked_at(now).then_some(now);
        let lengths = self.wanted_lengths();
        self.note_lengths(&lengths);
        let held = self.obstacles.values().any(|o| !o.is_final) || self.has_lingering();
        let retry =
            [self.retries.next(now), self.serving.next(now), self.recovering, record_again, pause_ends];
        let wakes = [revoked, next_look, next_drop, next_recovery, silent, next_due, leaderless, taken_over]
            .into_iter()
            .chain(retry);
        let kept = self.kept();
        let mut decision = Decision {
            lists: self.lists(&existing, &offered.ungranted),
            healthy: self.advertised.healthy(),
            step,
            record: self.to_record(),
            let_go: self.let_go(kept.as_ref()),
            kept,
            lengths,
            pause,
            remove_rejected: self.ledger.desired().policy.remove_rejected_pods,
            notes: std::mem::take(&mut self.notes),
            evict: self.evictions(),
            look_up: std::mem::take(&mut self.housekeeping.look_up),
            wants_holders: look || self.awaits_account() || self.advertised.wants_account(&self.account, now),
            wants_observation: held || silent.is_some(),
            wake: wakes.flatten().min(),
            status: self.status(&offered.waiting),
        };
        self.note_ready(&decision.status);
        if self.upkeep(&decision.status, now) {
            decision.wake = Some(now);
        }
        decision
    }

    fn kept(&self) -> Option<Kept> {
        self.knew.then(|| {
            let daemons = self.wanted_daemons();
            let spared = self.spared(&daemons);
            Kept { daemons, reach: self.wanted_reach(), limits: self.wanted_limits(), spared }
        })
    }

    /// The plan's steps. Recorded slices are made again as soon as the kubelet has listed the holders. The checkpoint
    /// may be of an earlier boot even if the agent has run in this one.
    fn steps(&mut self, knows_all: bool, now: Instant) -> Vec<Step> {
        let may_look = self.health.nvml.is_well() && self.account.is_known() && !self.is_closed();
        let may_restore = self.is_recovering() && may_look;
        if !knows_all && !may_restore {
            self.extend_recovery(now);
            return Vec::new();
        }
        let steps = self.plan(now);
        let steps = if self.is_recovering() { Self::recovery_steps(steps) } else { steps };
        self.note_recovery(&steps, now);
        steps
    }

    /// Why a recorded share no longer exists: its GPU has come out of a reboot in MIG mode.
    fn cut_from_under(&self, slice: &ExistingSlice) -> Option<String> {
        let is_in_mig_mode = || self.gpu_of(&slice.device).is_some_and(|gpu| gpu.mig.is_on());
        (slice.shape.kind() != Kind::Mig && is_in_mig_mode()).then(|| "its GPU is in MIG mode now".to_owned())
    }

    /// Devices that exist and cannot be used by a new pod or, if the GPU is at fault, by any pod.
    fn note_unserved(&mut self, existing: &[ExistingSlice], now: Instant) -> BTreeSet<DeviceId> {
        let mut devices = BTreeSet::new();
        let mut troubles = BTreeMap::new();
        let lingering = self.lingering();
        for slice in existing {
            let held = slice.held_as.is_some();
            let lasting = self.trouble_of_device(&slice.device).or_else(|| self.unnamed(slice));
            let lasting = lasting.or_else(|| self.cut_from_under(slice));
            let of_daemon = self.daemon_trouble(&slice.device, slice.shape).filter(|_| !held);
            let other = of_daemon.or_else(|| self.reach_trouble(&slice.device).filter(|_| !held));
            let lingers = !held && lingering.contains(&slice.id);
            let other = other.or_else(|| lingers.then(|| orphaned::TEXT.to_owned()));
            let other = other.or_else(|| self.refused_though_there(slice).filter(|_| !held));
            let Some(text) = lasting.clone().or(other) else { continue };
            devices.insert(slice.device.clone());
            if (slice.reservation.is_some() || lingers) && !held {
                // A slice in use is skipped: if its reservation were dropped, the extender would lose track of it.
                troubles.insert(slice.id.clone(), (text, lasting.is_some() && !lingers));
            }
        }
        troubles.extend(self.taken_by_others().map(|(id, text)| (id, (text, false))));
        let ids: Vec<SliceId> = troubles.keys().cloned().collect();
        let overdue = self.serving.out_of_reach(&ids, SERVE_WITHIN, now);
        let unserved = troubles.into_iter().map(|(id, (text, at_once))| {
            let is_final = at_once || overdue.contains(&id);
            (id, Obstruction { text, is_final })
        });
        self.unserved = unserved.collect();
        devices
    }

    /// Why the plan keeps no place for the existing slice of a GPU instance: a slice with precedence needs the instance
    /// in another form.
    fn refused_though_there(&self, slice: &ExistingSlice) -> Option<String> {
        slice.shape.instance()?;
        self.obstacles.get(&slice.id).map(|obstacle| obstacle.text.clone())
    }

    /// Why a slice can never be offered under the name of its reservation.
    fn unnamed(&self, slice: &ExistingSlice) -> Option<String> {
        let promised = slice.reservation.as_ref().filter(|_| slice.held_as.is_none())?;
        let name = promised.resource;
        (!self.advertised.serves(name)).then(|| format!("{name} is no name that this node serves"))
    }

    /// Plans the steps on GPU instances. Steps of shares are carried out at once.
    fn plan(&mut self, now: Instant) -> Vec<Step> {
        loop {
            let observed = self.observed();
            let wanted = self.to_plan();
            let plan = planner::plan(&observed, &wanted);
            if let Err(violation) = planner::check(&observed, &wanted, &plan) {
                tracing::error!(%violation, steps = ?plan.steps, "a plan was refused by its checker; nothing is cut");
                // Without a plan it is unknown which slices have an obstacle.
                self.obstacles.clear();
                return Vec::new();
            }
            if !self.run_share_steps(&observed, &plan, now) {
                self.note_obstacles(&plan, now);
                self.note_blocked(&observed, &plan);
                return plan.steps.into_iter().filter(|s| self.is_allowed_alone(&observed, s)).collect();
            }
        }
    }

    /// Whether the step is legal without those before it, which may have to wait.
    fn is_allowed_alone(&self, observed: &Observed, step: &Step) -> bool {
        let alone = Plan { steps: vec![step.clone()], refused: Vec::new() };
        planner::check(observed, &self.to_plan(), &alone).is_ok()
    }

    /// Starts or ends the next share that is ready, and returns whether there was one. Then everything is planned
    /// again: what was to end before may still exist, and two starts that are legal alone may not be legal together.
    fn run_share_steps(&mut self, observed: &Observed, plan: &Plan, now: Instant) -> bool {
        for step in &plan.steps {
            match step {
                Step::Start { gpu, id, shape } if shape.replica().is_some() => {
                    if !self.is_allowed_alone(observed, step) {
                        continue;
                    }
                    let Some(device) = self.startable_replica(gpu, *shape, now) else { continue };
                    tracing::info!(%gpu, slice = %id, %shape, "replica started");
                    let replica = Share { gpu: gpu.clone(), id: id.clone(), shape: *shape };
                    self.made.insert(device.clone());
                    self.shares.insert(device, replica);
                    return true;
                }
                // What was to end first may still exist, or the MPS daemon of an ended share.
                Step::Start { gpu, id, shape }
                    if self.waits_for_daemon(gpu, *shape)
                        || self.is_being_switched(gpu)
                        || self.shares.contains_key(&share::device_id(gpu, id))
                        || !self.is_allowed_alone(observed, step) => {}
                Step::Start { gpu, id, shape } => {
                    tracing::info!(%gpu, slice = %id, %shape, "share started");
                    let share = Share { gpu: gpu.clone(), id: id.clone(), shape: *shape };
                    let device = share::device_id(gpu, id);
                    self.made.insert(device.clone());
                    self.shares.insert(device, share);
                    return true;
                }
                // During recovery no share ends, because other holders are not known yet.
                Step::End { gpu, id } if !self.is_recovering() => {
                    let Some(device) = self.share_named(gpu, id) else { continue };
                    if self.may_go(&device, now) {
                        tracing::info!(%gpu, slice = %id, "share ended");
                        self.shares.remove(&device);
                        return true;
                    }
                }
                Step::Switch { .. } | Step::End { .. } | Step::Create { .. } | Step::Destroy { .. } => {}
            }
        }
        false
    }

    /// Whether no container has the device or can get it. Three things must hold: the kubelet does not offer it;
    /// holders were listed after that; and since an earlier decision the device is refused to any container for which
    /// the kubelet picked it before. If only the last is missing, it is refused from now on.
    pub(super) fn may_go(&mut self, device: &DeviceId, now: Instant) -> bool {
        let quiet = self.advertised.quiet_since(device, now);
        let asked = self.account.asked();
        let is_free =
            !self.account.is_held(device) && quiet.zip(asked).is_some_and(|(quiet, asked)| asked > quiet);
        is_free && self.advertised.revoke(device, now)
    }

    fn note_obstacles(&mut self, plan: &Plan, now: Instant) {
        let tasks: Vec<_> = plan.refused.iter().map(|(id, _)| Task::Create(id.clone())).collect();
        let overdue = self.retries.out_of_reach(&tasks, OUT_OF_REACH, now);
        let obstruction = |id: &SliceId, obstacle: &Obstacle| {
            // A mode that is about to be switched is no obstacle.
            let switching = self.desired().iter().any(|w| w.id == *id && self.is_switching(&w.gpu));
            let wanted = self.desired().iter().find(|w| w.id == *id);
            let gpu = wanted.and_then(|w| self.gpu(&w.gpu));
            let others = gpu.filter(|gpu| {
                *obstacle == Obstacle::NotAllowed(Kind::Whole) && self.is_shared_with_others(gpu)
            });
            let others =
                others.map(|_| "processes that kerf knows no slice of use the GPU's memory".to_owned());
            let at_once = matches!(obstacle, Obstacle::NoSuchGpu(_))
                || matches!(obstacle, Obstacle::WrongMode | Obstacle::NotAllowed(_) | Obstacle::NoReplicas)
                    && !switching;
            let is_spared = wanted.is_some_and(|wanted| self.is_spared(wanted));
            let is_late = at_once && others.is_none() || overdue.contains(&Task::Create(id.clone()));
            let is_final = is_late && !is_spared;
            let trouble = gpu.and_then(|gpu| self.trouble_of(gpu)).or(others);
            let trouble = trouble.or_else(|| is_spared.then(|| unresponsive::TEXT.to_owned()));
            let text = trouble.unwrap_or_else(|| obstacle.to_string());
            Obstruction { text, is_final }
        };
        self.obstacles = plan.refused.iter().map(|(id, o)| (id.clone(), obstruction(id, o))).collect();
    }

    /// The first step that may run now, on a GPU without a step under way.
    fn next_step(&mut self, steps: Vec<Step>, now: Instant) -> Option<Step> {
        steps.into_iter().find(|step| match step {
            step if self.is_busy_with(step.gpu()) => false,
            // The mode must not be switched with a daemon: its server is a process on the GPU, and its compute mode may
            // differ.
            Step::Switch { gpu, .. } => !self.daemons.contains_key(gpu) && self.may_try(step, now),
            Step::Create { .. } => self.may_try(step, now),
            Step::Destroy { gpu, instance, part } => {
                let found = self.find(gpu, *instance).into_iter().flat_map(GpuInstance::devices);
                let going = found.filter(|(at, ..)| part.is_none() || at == part);
                let going: Vec<DeviceId> = going.map(|(.., device)| device.clone()).collect();
                self.may_try(step, now) && going.iter().all(|d| self.may_go(d, now))
            }
            Step::Start { .. } | Step::End { .. } => false,
        })
    }

    /// Remembers which slice each MIG device was made for.
    fn remember_origins(&mut self) {
        let named: Vec<_> = self
            .desired()
            .iter()
            .chain(&self.restored.ledger.desired.slices)
            .filter(|w| w.shape.instance().is_some())
            .filter_map(|w| Some((self.mig_device_of(w)?, w.id.clone())))
            .collect();
        // The ledger's own names take precedence; those of the checkpoint fill in for slices that the ledger no longer
        // has.
        let mut named_now = BTreeSet::new();
        for (device, id) in named {
            if named_now.insert(device.clone()) {
                self.origins.insert(device, id);
            }
        }
        if self.health.nvml.is_well() {
            // Names are kept although a device is not visible: the next observation may show it again, and without its
            // name it would count as unknown. That is safe, because no new device gets the UUID of an old one.
            if self.origins.len() > MOST_ORIGINS {
                let instances = self.gpus.iter().flat_map(|g| &g.instances);
                let there: Vec<_> = instances.flat_map(|i| i.devices().map(|(.., d)| d.clone())).collect();
                self.origins.retain(|device, _| there.contains(device));
            }
            self.tell_adopted();
        }
    }
}

/// The key by which a step's failures are counted.
pub(super) fn task(step: &Step) -> Task {
    match step {
        Step::Switch { gpu, .. } => Task::Switch(gpu.clone()),
        Step::Create { id, .. } | Step::Start { id, .. } | Step::End { id, .. } => Task::Create(id.clone()),
        Step::Destroy { gpu, instance, part } => Task::Destroy(gpu.clone(), *instance, *part),
    }
}
