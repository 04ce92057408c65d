//! The events that change the facts about the node.

use super::daemons::holders_on;
use super::device_ids::mig_device;
use super::facts::Facts;
use super::health::Neighbour;
use super::steps::Task;
use super::{
    Allocatable, Daemons, Holders, Ill, Node, NodeEvent, NodePods, Predecessor, Reply, acceptance,
    desired_changed,
};
use crate::access::AccessGrant;
use crate::gpu::{Gpu, GpuError, GpuEvent, GpuInstance, Unresponsive};
use crate::processes::Usage;
use kerf_core::contract::{NodePolicy, SliceStatus};
use kerf_core::ledger::{Found, Order, OrderKind, Seen};
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::planner::Step;
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A call that changes a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Switch {
        gpu: GpuUuid,
        mig: bool,
        /// Whether the switch may reset the GPU, by the policy.
        may_reset: bool,
    },
    Create {
        gpu: GpuUuid,
        instance: Instance,
        part: Option<ComputeInstance>,
        /// The slice that the instance is created for.
        id: SliceId,
    },
    Destroy {
        gpu: GpuUuid,
        found: GpuInstance,
        part: Option<ComputeInstance>,
    },
}

/// What the GPUs and their driver report.
impl Node {
    /// Takes an observation of the GPUs, and those that have never answered. Returns whether a GPU answers that did
    /// not before.
    pub fn on_observed(&mut self, observed: Result<(Vec<Gpu>, Unresponsive), GpuError>) -> bool {
        let before = self.facts.inventory.answering();
        let state = match observed {
            Ok((gpus, unresponsive)) => {
                self.facts.observe(gpus, unresponsive);
                self.steps.see();
                self.advertised.serve(&self.facts.resource_names());
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        };
        self.health.set(Neighbour::Nvml, state);
        !self.facts.inventory.answering().is_subset(&before)
    }

    pub fn on_usage(&mut self, usage: Usage) {
        // A failed observation shows no process; that does not mean that none runs.
        if !self.health.is_well(Neighbour::Nvml) {
            return;
        }
        self.facts.measure(usage);
        let gpu_use = self.facts.gpu_use();
        let (outside, over) = (gpu_use.outside_events(), gpu_use.over_use_events());
        self.events.emit_lasting(outside, |event| matches!(event, NodeEvent::Outside { .. }));
        self.events.emit_lasting(over, |event| matches!(event, NodeEvent::OverUse { .. }));
    }

    /// Takes an error that a GPU, or one GPU instance of it, has reported.
    pub fn on_trouble(&mut self, event: GpuEvent, now: Instant) {
        if let Some(ill) = self.facts.inventory.take_trouble(event, &self.settings.xids, now) {
            let Ill { gpu, text, .. } = ill;
            self.events.emit(NodeEvent::GpuUnhealthy { gpu, text });
        }
    }

    /// Begins the decided step, so that no other begins on its GPU. Returns its call; `None` if there is nothing to
    /// call.
    pub fn start(&mut self, step: &Step) -> Option<Call> {
        let call = match step.clone() {
            Step::Switch { gpu, mig } => {
                let may_reset = self.facts.rules().may_reset(&gpu);
                Call::Switch { gpu, mig, may_reset }
            }
            Step::Create { gpu, instance, part, id } => Call::Create { gpu, instance, part, id },
            Step::Destroy { gpu, instance, part } => {
                let found = self.facts.inventory.find(&gpu, instance)?.clone();
                Call::Destroy { gpu, found, part }
            }
            Step::Start { .. } | Step::End { .. } => return None,
        };
        self.steps.start(step);
        Some(call)
    }

    pub fn on_created(
        &mut self,
        gpu: &GpuUuid,
        id: &SliceId,
        result: Result<GpuInstance, GpuError>,
        now: Instant,
    ) {
        if let Some(created) = self.steps.end(gpu, Task::Create(id.clone()), result, now) {
            // The step ran, so its checkpoint was written.
            self.recovery.clear_write_failure();
            self.facts.slices.take_created(id, &created);
            self.facts.inventory.add_instance(gpu, created);
        }
    }

    pub fn on_destroyed(
        &mut self,
        gpu: &GpuUuid,
        (instance, part): (Instance, Option<ComputeInstance>),
        result: Result<(), GpuError>,
        now: Instant,
    ) {
        let task = Task::Destroy(gpu.clone(), instance, part);
        if self.steps.end(gpu, task, result, now).is_some() {
            self.facts.inventory.remove_instance(gpu, instance, part);
        }
    }

    pub fn on_switched(&mut self, gpu: &GpuUuid, mig: bool, result: Result<(), GpuError>, now: Instant) {
        if self.steps.end(gpu, Task::Switch(gpu.clone()), result, now).is_some() {
            self.recovery.clear_write_failure();
            self.events.emit(NodeEvent::ModeChanged { gpu: gpu.clone(), mig });
        }
    }

    /// Handles a failed write of the checkpoint, for the step on `gpu` or for a setting: it was not made, and is tried
    /// again.
    pub fn on_unrecorded(&mut self, gpu: Option<&GpuUuid>, error: &str, now: Instant) {
        tracing::error!(error, "nothing is cut that cannot be recorded");
        self.steps.skip(gpu);
        self.recovery.fail_write(error, now);
    }
}

/// What the kubelet and the API server report.
impl Node {
    /// Takes the kubelet's list of holders. After a failed request the last list stays in force, because a failure says
    /// nothing about holders.
    pub fn on_holders(&mut self, holders: Result<Holders, String>) {
        let state = holders.map(|holders| {
            self.conflicts.take_holders(holders.asked);
            self.facts.take_holders(holders);
        });
        self.health.set(Neighbour::PodResources, state);
    }

    pub fn on_allocatable(&mut self, allocatable: Allocatable) {
        self.advertised.saw(allocatable);
    }

    /// Records that a container is being given these devices.
    pub fn on_allocated(&mut self, name: ResourceName, devices: Vec<DeviceId>, now: Instant) {
        self.facts.account.allocated(name, devices, now);
    }

    /// Takes the names that are registered with the kubelet once all are, or why not all are.
    pub fn on_registration(&mut self, result: Result<BTreeSet<ResourceName>, String>) {
        let (names, state) = match result {
            Ok(names) => (names, Ok(())),
            Err(error) => (BTreeSet::new(), Err(error)),
        };
        self.advertised.register(names);
        self.health.set(Neighbour::Registration, state);
    }

    /// Handles a pod that the kubelet rejected. Without a reservation it has bypassed kerf.
    pub fn on_rejected(&mut self, pod: PodKey, uid: &PodUid) {
        if !self.facts.reservations.all().any(|reservation| reservation.uid == *uid) {
            tracing::warn!(%pod, "a pod that kerf did not place asked for a slice, and was rejected");
            self.events.emit(NodeEvent::NoSlice { pod });
        }
    }

    /// Takes the bound pods that request names of kerf.
    pub fn on_pods(&mut self, pods: NodePods) {
        self.facts.take_pods(pods);
        self.health.set(Neighbour::Pods, Ok(()));
    }

    /// Records that a pod of this node is gone or finished.
    pub fn on_pod_left(&mut self, pod: PodKey, uid: PodUid, now: Instant) {
        self.facts.reservations.end_pod(uid.clone());
        self.facts.account.left(pod, uid, now);
    }

    /// Records that a pod was deleted while its containers may have run, or disappeared during a gap of the watch.
    pub fn on_pod_cut_off(&mut self, pod: PodKey, uid: PodUid) {
        self.facts.orphans.cut_off(pod, uid);
    }
}

/// What the GpuNode and the extender's leader request.
impl Node {
    /// Takes the policy in the GpuNode. If it cannot be read, the last one stays in force.
    pub fn on_policy(&mut self, policy: Result<NodePolicy, String>) {
        let state = match policy {
            Ok(policy) => {
                if self.facts.reservations.set_policy(policy) {
                    self.steps.retry_switches();
                    desired_changed(&self.facts, &mut self.steps, &mut self.advertised);
                }
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the GpuNode's policy cannot be read; the last one stays in force");
                Err(format!("the policy cannot be read: {error}"))
            }
        };
        self.health.set(Neighbour::Policy, state);
    }

    /// Takes what the first GpuNode says of the agent before.
    pub fn on_predecessor(&mut self, predecessor: Predecessor, now: Instant) {
        let Some(status) = self.facts.reservations.take_over(predecessor, now) else { return };
        let named = |SliceStatus { id, device, .. }| device.as_ref().map(mig_device).zip(id);
        self.facts.slices.add_origins(status.slices.into_iter().filter_map(named));
        desired_changed(&self.facts, &mut self.steps, &mut self.advertised);
    }

    /// Takes the epoch of the connected leader, if there is one.
    pub fn on_leader(&mut self, epoch: Option<u64>, now: Instant) {
        if let Some(epoch) = epoch {
            self.facts.reservations.hear(epoch);
        }
        self.health.set_leader(epoch.is_some(), now);
    }

    /// Carries out a leader's order, or returns why not.
    pub fn on_order(&mut self, order: &Order, now: Instant) -> Reply {
        // A process that was frozen must first drop what expired meanwhile, and only then follow orders.
        let Facts { reservations, pods, .. } = &mut self.facts;
        reservations.follow_pods(pods.listed(), now);
        let closed = acceptance::trouble(&self.facts, &self.health, &self.conflicts);
        let (observed, status) = (self.facts.observer().observed(), self.status(&BTreeSet::new()));
        let seen = Seen { closed: closed.as_deref(), observed: &observed, status: &status };
        let reply = self.facts.reservations.follow(order, seen, now);
        if reply.answer.is_ok() && matches!(order.kind, OrderKind::Reserve(_)) {
            desired_changed(&self.facts, &mut self.steps, &mut self.advertised);
        }
        reply
    }

    /// Takes the result of a pod's look-up that was requested at this time.
    pub fn on_looked_up(&mut self, uid: &PodUid, asked: Instant, found: Found) {
        self.facts.reservations.take_look_up(uid, asked, found);
    }

    /// Rejects and removes reservations that could not be recorded.
    pub fn on_unrecorded_reservations<'u>(
        &mut self,
        uids: impl Iterator<Item = &'u PodUid>,
        error: &str,
        now: Instant,
    ) {
        tracing::error!(error, "no reservation is accepted that cannot be recorded");
        self.recovery.fail_write(error, now);
        self.facts.reservations.retract(uids);
        desired_changed(&self.facts, &mut self.steps, &mut self.advertised);
    }

    /// Takes why the disk accepts no reservation now. Then the node accepts no new pods; those with a reservation
    /// continue.
    pub fn on_disk(&mut self, trouble: Option<String>) {
        self.health.set_disk(trouble);
    }
}

/// What other programs on the node do.
impl Node {
    pub fn on_conflicts(&mut self, managers: Vec<String>, now: Instant) {
        let contested = self.conflicts.take(managers, now);
        self.events.emit_lasting(contested, |event| matches!(event, NodeEvent::Contested { .. }));
    }

    /// Takes the evidence for a driver upgrade; `None` if there is none.
    pub fn on_upgrade(&mut self, upgrade: Option<String>) {
        let upgrade = self.conflicts.take_upgrade(upgrade);
        self.events.emit_lasting(upgrade, |event| matches!(event, NodeEvent::DriverUpgrade { .. }));
    }

    /// Takes the state of the MPS daemons. Pods that lost their daemon get an Event, unless they got one for its
    /// server's fault.
    pub fn on_daemons(&mut self, daemons: Daemons) {
        for (gpu, how) in self.mps.take(daemons) {
            for pod in holders_on(&gpu, &self.facts.account) {
                self.events.emit(NodeEvent::MpsRestarted { gpu: gpu.clone(), pod, how: how.clone() });
            }
        }
    }

    /// Handles that the clients of a GPU's MPS server have lost their work.
    pub fn on_server_lost(&mut self, gpu: &GpuUuid, how: &str) {
        for pod in holders_on(gpu, &self.facts.account) {
            self.events.emit(NodeEvent::MpsRestarted { gpu: gpu.clone(), pod, how: Some(how.to_owned()) });
        }
        self.mps.take_loss(gpu);
    }

    /// Takes which devices can be opened and how, and why others cannot.
    pub fn on_reachable(&mut self, reachable: BTreeMap<DeviceId, Result<AccessGrant, String>>) {
        self.access.take(reachable);
    }

    /// Takes the labels of the programs that GPU Operator deploys on the node.
    pub fn on_deployed(&mut self, labels: BTreeSet<String>) {
        self.pausing.take_deployed(labels);
    }

    /// Takes the labels that may still have to be restored, and the pause whose programs have ended or whose timeout
    /// has passed.
    pub fn on_paused(&mut self, labels: BTreeSet<String>, cleared: u64) {
        self.pausing.take_paused(labels, cleared);
    }
}
