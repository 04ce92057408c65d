//! Turns everything that is known into a decision.
//!
//! One step runs at a time on each GPU. The plan is recomputed after each step, so that it always uses the current
//! desired state and the newest holders.

use super::conflicts::Conflicts;
use super::daemons::{MpsDaemons, MpsService};
use super::decision::{GpuSettings, Next, PodActions};
use super::device_access::DeviceAccess;
use super::facts::Facts;
use super::health::{Health, Neighbour};
use super::lists::Lister;
use super::offering::ready_pods;
use super::pausing::Pausing;
use super::planning::Planner;
use super::recovery::Recovery;
use super::service::Service;
use super::steps::Steps;
use super::{
    Decision, DesiredSlices, Node, NodeEvent, Report, Restored, WantedDaemon, acceptance, desired_changed,
};
use kerf_core::closeness::Closeness;
use kerf_core::contract::{OverUse, Shape, WantedSlice};
use kerf_core::names::{GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::offer::{ExistingSlice, Offer, offer};
use kerf_core::planner::Step;
use std::collections::BTreeMap;
use std::time::Instant;

/// What is known, and so may be done.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Whether the last call of NVML succeeded.
    gpus: bool,
    /// Whether every holder is known. While holders or GPUs are unknown nothing is cut: a device counts as held until
    /// it is known to be free.
    holders: bool,
    /// Whether everything is known that a cut or a new offer needs, and nothing closes the node.
    all: bool,
}

impl Known {
    fn new(facts: &Facts, health: &Health, conflicts: &Conflicts) -> Self {
        let gpus = health.is_well(Neighbour::Nvml);
        let has_pods = health.is_well(Neighbour::Pods) && health.is_well(Neighbour::Policy);
        let holders = facts.account.is_known() && has_pods;
        let is_shut = conflicts.is_closed() || facts.reservations.takeover_trouble().is_some();
        Self { gpus, holders, all: holders && gpus && !is_shut }
    }
}

impl Node {
    pub fn decide(&mut self, now: Instant) -> Decision {
        let expected = await_gpus(&mut self.facts, &mut self.health, now);
        let (recovered, next_recovered) = self.facts.inventory.recover(self.settings.recover_after, now);
        for gpu in recovered {
            self.events.emit(NodeEvent::GpuRecovered { gpu });
        }
        let mut due =
            vec![expected, next_recovered, self.facts.pass_time(now), self.health.await_leader(now)];
        let known = Known::new(&self.facts, &self.health, &self.conflicts);
        self.health.observe_complete(known.holders && known.gpus);
        self.facts.adopt(known.holders);
        let Facts { reservations, pods, .. } = &self.facts;
        self.bindings.take_pods(reservations.all().map(|r| &r.uid), |uid| pods.is_bound(uid));
        self.advertised.take_lacking(self.facts.offering().lacking(|uid| self.bindings.may_be(uid)));
        // With known holders the held devices are known too, whether or not another manager is here.
        if known.holders && known.gpus && (self.conflicts.are_known() || known.all) {
            self.facts.inventory.forget_expected();
        }
        let steps = self.plan(known, now);
        let (existing, offered) = self.offer(known, now);
        let (wants_holders, next_list) = self.facts.account.look(now);
        due.extend([next_list, self.advertised.drop_ids(&self.facts.account, now)]);
        due.extend([self.recovery.next_write(now), self.recovery.until()]);
        let step = self.choose(steps, now);
        due.extend([self.pausing.ends(), self.steps.next(now)]);
        due.push(self.advertised.revoked_at(now).then_some(now));
        let next = Next {
            wants_holders: wants_holders
                || self.conflicts.awaits_holders()
                || self.advertised.wants_holders(&self.facts.account, now),
            wants_observation: expected.is_some()
                || self.steps.has_passing_obstacle()
                || has_passing_orphan(&self.facts, &self.steps),
            due_at: due.into_iter().flatten().min(),
        };
        let mut decision = self.finish(known, &existing, &offered, (step, next));
        self.bindings.take_status(ready_pods(self.facts.reservations.desired(), &decision.status));
        let is_open = acceptance::trouble(&self.facts, &self.health, &self.conflicts).is_none();
        if is_open && self.facts.upkeep(&decision.status, now) {
            desired_changed(&self.facts, &mut self.steps, &mut self.advertised);
            decision.next.due_at = Some(now);
        }
        decision
    }

    /// The plan's steps. Recorded slices are made again as soon as the kubelet has listed the holders. The checkpoint
    /// may be of an earlier boot even if the agent has run in this one.
    fn plan(&mut self, known: Known, now: Instant) -> Vec<Step> {
        let may_look = known.gpus && self.facts.account.is_known() && !self.conflicts.is_closed();
        let is_recovering = self.recovery.is_running();
        let may_plan = known.all || is_recovering && may_look;
        if !may_plan {
            self.recovery.extend(now);
            return Vec::new();
        }
        let (facts, advertised, steps) = (&mut self.facts, &mut self.advertised, &mut self.steps);
        let mps = &self.mps;
        let plan = Planner { facts, advertised, steps, mps, is_recovering, now }.plan();
        let plan = self.recovery.select(plan);
        if self.recovery.end(known.gpus && !self.steps.has_open(&plan), now) {
            log_recovery(&self.facts);
        }
        plan
    }

    /// Updates the lists for the kubelet. Returns the slices that exist, and what is offered of them.
    fn offer(&mut self, known: Known, now: Instant) -> (Vec<ExistingSlice>, Offer) {
        let mut existing = self.facts.offering().existing();
        self.facts.remember_origins(known.gpus);
        if known.gpus {
            let unknown = self.facts.placement().unknown().into_iter();
            let adopted = unknown.map(|device| NodeEvent::Adopted { device }).collect();
            self.events.emit_lasting(adopted, |event| matches!(event, NodeEvent::Adopted { .. }));
        }
        let mismatches = self.facts.offering().mismatches().into_iter();
        let mismatches = mismatches.map(|m| NodeEvent::Mismatch { device: m.device, pod: m.holder });
        self.events.emit_lasting(mismatches.collect(), |e| matches!(e, NodeEvent::Mismatch { .. }));
        let mps = MpsService::new(&self.mps, self.facts.gpu_use(), &self.conflicts);
        let (facts, advertised, access) = (&self.facts, &self.advertised, &self.access);
        let service = Service { facts, advertised, mps, access };
        let unserved = self.steps.set_unserved(&existing, &service, now);
        for slice in &mut existing {
            slice.served = !unserved.contains(&slice.device);
        }
        let mut offered = offer(&existing, &self.facts.offering().missing(), &self.bindings);
        if known.all {
            self.advertised.offer(&offered.healthy, now);
        } else if known.gpus && !self.conflicts.is_closed() {
            // A holder keeps its device listed, because its container may restart.
            let account = &self.facts.account;
            let devices = offered.healthy.values_mut();
            devices.for_each(|devices| devices.retain(|d| account.holder(d).is_some()));
            self.advertised.add(&offered.healthy, now);
        }
        (existing, offered)
    }

    /// The step to run now. Programs that hold GPUs are paused first if it needs that.
    fn choose(&mut self, steps: Vec<Step>, now: Instant) -> Option<Step> {
        let may_change = self.health.was_complete() && !self.conflicts.is_closed();
        let mut planner = Planner {
            facts: &mut self.facts,
            advertised: &mut self.advertised,
            steps: &mut self.steps,
            mps: &self.mps,
            is_recovering: self.recovery.is_running(),
            now,
        };
        self.pausing.update(may_change, || steps.iter().any(|step| planner.needs_pause(step)), now);
        // After a failed write of the checkpoint no step runs before the next try, because each step is recorded first.
        let may_step = self.recovery.next_write(now).is_none();
        let step = if may_step { planner.next_step(steps, &self.pausing, self.settings.probe) } else { None };
        match &step {
            Some(step) => {
                self.steps.begin(step);
                self.facts.slices.begin(step);
                self.pausing.extend(now);
            }
            // The condition stays until a step has been recorded again.
            None => self.recovery.retry_write(now),
        }
        step
    }

    fn finish(
        &mut self,
        known: Known,
        existing: &[ExistingSlice],
        offered: &Offer,
        (step, next): (Option<Step>, Next),
    ) -> Decision {
        let status = self.status(&offered.waiting);
        let may_begin = !self.recovery.is_running() && !self.conflicts.is_closed();
        let may_name = self.advertised.may_name(may_begin, known.gpus);
        let lengths = self.facts.rules().lengths();
        self.recovery.observe_lengths(&lengths);
        let (events, look_up) = (self.events.take(), self.facts.reservations.take_look_ups());
        let Self { facts, health, advertised, recovery, conflicts, mps, access, pausing, .. } = &*self;
        let daemons = MpsService::new(mps, facts.gpu_use(), conflicts).wanted();
        let lists = || {
            let closeness = Closeness::from_gpus(&status.gpus);
            Lister { facts, advertised, access, ungranted: &offered.ungranted, closeness }.lists(existing)
        };
        let is_quiet = health.was_complete() && daemons.is_empty() && mps.are_gone();
        let policy = facts.reservations.policy();
        Decision {
            lists: if may_name { lists() } else { BTreeMap::new() },
            healthy: advertised.healthy(),
            let_go: conflicts.let_go(is_quiet, mps.folder()),
            step,
            record: record(known.gpus, facts, (mps, &daemons), conflicts, recovery, pausing),
            slices: health.was_complete().then(|| desired_slices(facts, access, mps, daemons)),
            gpus: GpuSettings { lengths, pause: pausing.current() },
            events,
            pods: PodActions {
                remove_rejected: policy.remove_rejected_pods,
                evict: evictions(facts),
                look_up,
            },
            next,
            report: Report::new(facts, health, conflicts, &status),
            status,
        }
    }
}

/// While the agent waits for GPUs that an earlier process had, NVML counts as ill. Returns when that ends.
fn await_gpus(facts: &mut Facts, health: &mut Health, now: Instant) -> Option<Instant> {
    let is_well = health.is_well(Neighbour::Nvml);
    let (text, until) = facts.inventory.await_expected(is_well, now)?;
    if is_well {
        health.set(Neighbour::Nvml, Err(text));
    }
    Some(until)
}

fn desired_slices(
    facts: &Facts,
    access: &DeviceAccess,
    mps: &MpsDaemons,
    daemons: BTreeMap<GpuUuid, WantedDaemon>,
) -> DesiredSlices {
    let reach = access.wanted(&facts.inventory, &facts.slices, mps.folder());
    let (limits, spared) = (facts.gpu_use().wanted_limits(), facts.spared(&daemons));
    DesiredSlices { daemons, reach, limits, spared }
}

/// The checkpoint that must be written before anything is cut.
pub(super) fn record(
    is_observed: bool,
    facts: &Facts,
    (mps, daemons): (&MpsDaemons, &BTreeMap<GpuUuid, WantedDaemon>),
    conflicts: &Conflicts,
    recovery: &Recovery,
    pausing: &Pausing,
) -> Restored {
    let mut record = Restored::default();
    facts.save(&mut record, is_observed);
    mps.save(&mut record, daemons);
    conflicts.save(&mut record);
    recovery.save(&mut record);
    pausing.save(&mut record);
    record
}

/// The pods that the policy evicts for their use of memory.
fn evictions(facts: &Facts) -> Vec<(PodKey, PodUid)> {
    if facts.reservations.policy().over_use != OverUse::Evict {
        return Vec::new();
    }
    let gpu_use = facts.gpu_use();
    gpu_use.over_used().filter_map(|(_, pod, _)| Some((pod.clone(), gpu_use.uid(&pod)?))).collect()
}

/// Whether an observation may soon show that no process is left on a slice. Later the normal interval is enough.
fn has_passing_orphan(facts: &Facts, steps: &Steps) -> bool {
    let is_new = |id: &SliceId| steps.unserved(id).is_some_and(|why| !why.is_final);
    facts.occupancy().orphaned().iter().any(is_new)
}

/// Logs which recorded slices were not made again.
fn log_recovery(facts: &Facts) {
    let placement = facts.placement();
    let is_missing =
        |w: &&WantedSlice| matches!(w.shape, Shape::Mig { .. }) && placement.device_of(w).is_none();
    let mut missing = 0_usize;
    for wanted in placement.desired().iter().filter(is_missing) {
        let (id, gpu) = (&wanted.id, &wanted.gpu);
        tracing::error!(slice = %id, %gpu, shape = %wanted.shape, "a recorded slice was not made again");
        missing += 1;
    }
    if missing == 0 {
        tracing::info!("the recorded slices are there; names are registered now");
    } else {
        tracing::warn!(missing, "names are registered without the slices that were not made again");
    }
}
