//! The agent's one loop: it takes events, gets a decision, and hands out its parts. At most one call is under way on
//! each GPU, and none while all GPUs are observed.
//!
//! observe → plan → check → execute → publish: [`Node`] does the first three without I/O; this module waits, hands out
//! and runs.

use crate::applied_settings::AppliedSettings;
use crate::device_plugin::{self, Allocations, Served};
use crate::ending::{Ending, Session};
use crate::event::{Event, Events};
use crate::executor::{Executor, Outcome};
use crate::metrics::{Metrics, SliceUse};
use crate::mps;
use crate::node::{Decision, DevicesByName, LetGo, ListedDevice, Node, NodeEvent, Report, Restored};
use crate::node_events;
use crate::node_object::Counts;
use crate::pod_lookup;
use crate::pod_resources::Watched;
use crate::reconcilers::DesiredState;
use crate::recorder::Recorder;
use crate::rejected::Eviction;
use crate::unanswered::Unanswered;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::gfd_labels::GfdLabels;
use kerf_core::ledger::NodeState;
use kerf_core::planner::Step;
use kerf_core::resource::ResourceName;
use kerf_runtime::admin::Readiness;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// The wait after a failed observation, and between observations that a plan requests.
const OBSERVE_INTERVAL: Duration = Duration::from_millis(300);

/// How often shared GPUs are observed, so that a pod that uses more than its share is reported within ten seconds.
const SHARES_INTERVAL: Duration = Duration::from_secs(4);

/// How long after a cut the GPUs are observed. Only labels show what a new MIG device has, and no pod waits for them.
const NEW_DEVICE_DELAY: Duration = Duration::from_secs(5);

/// The wait after a failed write of the checkpoint. It is shorter than the node's own, so that the failure is reported
/// until a write succeeds.
const RECORD_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The channels into which the loop hands its decisions.
pub struct Outlets {
    /// The sender of events, for the servers that the loop starts.
    pub events: Events,
    /// Allocations under way, during which the kubelet is not asked for holders.
    pub allocations: Allocations,
    pub plugin_folder: PathBuf,
    /// Requests a new list of holders from the kubelet.
    pub want_holders: Arc<Notify>,
    /// The healthy devices that the kubelet has to acknowledge.
    pub watched: watch::Sender<Watched>,
    /// The status to publish in the GpuNode.
    pub status: watch::Sender<GpuNodeStatus>,
    /// The node's state, which the streams copy to the extender.
    pub reported: watch::Sender<Arc<NodeState>>,
    pub look_up: mpsc::UnboundedSender<pod_lookup::Wanted>,
    /// Counts of devices by name, for readers of the Node's status.
    pub counts: watch::Sender<Counts>,
    pub labels: watch::Sender<BTreeMap<String, Option<String>>>,
    /// The values that NVIDIA's labels should have for the node.
    pub gfd_labels: watch::Sender<GfdLabels>,
    pub desired: DesiredState,
    pub recorder: Recorder,
    pub readiness: Readiness,
    pub metrics: Metrics,
}

pub struct Reconciler {
    node: Node,
    outlets: Outlets,
    lists: BTreeMap<ResourceName, watch::Sender<Arc<Vec<ListedDevice>>>>,
    /// Servers of names. Names are added while the agent runs and never removed.
    plugins: Vec<tokio::task::JoinHandle<()>>,
    /// Which of the servers, by index, have registered their names.
    registered: BTreeMap<usize, Result<(), String>>,
    executor: Executor,
    applied: AppliedSettings,
    unanswered: Unanswered,
    record_at: Instant,
    resync: Duration,
    observe_at: Instant,
    /// The end of the last observation that was handled; `None` before the first.
    last_observed: Option<Instant>,
    /// Whether an observation of memory was handled since the metrics were last set.
    measure: bool,
}

impl Reconciler {
    #[must_use]
    pub fn new(
        (node, applied): (Node, AppliedSettings),
        outlets: Outlets,
        executor: Executor,
        resync: Duration,
    ) -> Self {
        let observe_at = Instant::now();
        let (lists, plugins, registered) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let last_observed = None;
        Self {
            node,
            outlets,
            lists,
            plugins,
            registered,
            executor,
            unanswered: Unanswered::default(),
            applied,
            record_at: observe_at,
            resync,
            observe_at,
            last_observed,
            measure: false,
        }
    }

    /// Runs until the session ends and the servers have closed.
    pub async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>, session: Session) {
        let stop = session.stop();
        while !stop.is_cancelled() {
            // Take all queued events first, so that an allocation that an earlier decision's lists granted is known to
            // this one.
            while let Ok(event) = events.try_recv() {
                self.take(event);
            }
            let now = Instant::now();
            self.node.on_disk(self.unanswered.trouble(now));
            let decision = self.node.decide(now);
            let due_at = self.hand_out(decision, now, &session);
            tokio::select! {
                () = stop.cancelled() => break,
                outcome = self.executor.outcome() => self.take_outcome(outcome, &session),
                written = self.unanswered.written() => {
                    self.unanswered.answer(written, &mut self.node, &mut self.applied, Instant::now());
                }
                event = events.recv() => {
                    let Some(event) = event else { break };
                    self.take(event);
                }
                () = tokio::time::sleep(due_at.saturating_duration_since(now)) => {}
            }
        }
        let record = self.applied.complete(self.node.decide(Instant::now()).record);
        let checkpoint_writer = self.executor.checkpoint_writer();
        if let Err(error) = checkpoint_writer.leave(record).await {
            tracing::warn!(%error, "what the node has is not recorded");
        }
        for plugins in self.plugins.drain(..) {
            drop(plugins.await);
        }
    }

    fn take(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Order(order, to) => {
                let reply = self.node.on_order(&order, now);
                self.unanswered.take(reply, to, &self.node);
            }
            Event::Leader(epoch) => self.node.on_leader(epoch, now),
            Event::LookedUp(uid, asked, found) => self.node.on_looked_up(&uid, asked, found),
            Event::Policy(policy) => self.node.on_policy(policy),
            Event::Predecessor(before) => self.node.on_predecessor(*before, now),
            Event::Holders(holders) => self.node.on_holders(holders),
            Event::Allocatable(allocatable) => self.node.on_allocatable(allocatable),
            Event::Allocated(name, devices) => self.node.on_allocated(name, devices, now),
            Event::PodLeft(pod, uid) => self.node.on_pod_left(pod, uid, now),
            Event::PodCutOff(pod, uid) => self.node.on_pod_cut_off(pod, uid),
            Event::Pods(pods) => self.node.on_pods(pods),
            Event::Rejected(pod, uid) => {
                self.outlets.metrics.count_rejection();
                self.node.on_rejected(pod, &uid);
            }
            Event::Registered(server, result) => self.take_registration(server, result),
            Event::Daemons(daemons) => {
                self.applied.on_daemons(&daemons);
                self.node.on_daemons(daemons);
            }
            Event::ServerLost(gpu, how) => self.node.on_server_lost(&gpu, &how),
            Event::Limits(limits) => self.applied.on_limits(limits),
            Event::Reachable(reachable) => self.node.on_reachable(reachable),
            Event::Trouble(event) => {
                // Observe at once, because an observation shows whether the GPU is lost.
                self.observe_at = now;
                self.node.on_trouble(event, now);
            }
            Event::Conflicting(managers) => self.node.on_conflicts(managers, now),
            Event::Upgrade(upgrade) => self.node.on_upgrade(upgrade),
            Event::Deployed(labels) => self.node.on_deployed(labels),
            Event::Paused(labels, cleared) => self.node.on_paused(labels, cleared),
        }
    }

    /// Reports the names as registered once every server has registered.
    fn take_registration(&mut self, server: usize, result: Result<(), String>) {
        self.registered.insert(server, result);
        let failed = self.registered.values().find_map(|r| r.as_ref().err().cloned());
        let whole = self.registered.len() == self.plugins.len();
        match failed {
            Some(error) => self.node.on_registration(Err(error)),
            None if whole => self.node.on_registration(Ok(self.lists.keys().copied().collect())),
            None => {}
        }
        // A kubelet that registers names may have restarted, so it has to acknowledge all lists again.
        self.outlets.watched.send_modify(|watched| watched.number += 1);
    }

    fn take_outcome(&mut self, outcome: Outcome, session: &Session) {
        let now = Instant::now();
        if let Some((call, took, error)) = outcome.call() {
            self.outlets.metrics.count_step(call, took, error);
        }
        match outcome {
            Outcome::Over(ending) => session.end(ending),
            Outcome::Observed { result, usage, .. } => {
                let failed = result.is_err();
                if let Err(error) = &result {
                    tracing::error!(%error, "the GPUs cannot be observed");
                }
                let answers_anew = self.node.on_observed(result);
                // A GPU that was unresponsive may have another handle, and one that never answered before has no
                // listener for its events.
                if self.last_observed.is_some() && answers_anew {
                    self.outlets.desired.reopen.ask();
                }
                self.node.on_usage(usage);
                self.measure = true;
                self.last_observed = Some(now);
                let soon = if self.node.gpu_use().has_shares() {
                    self.resync.min(SHARES_INTERVAL)
                } else {
                    self.resync
                };
                self.observe_at = now + if failed { OBSERVE_INTERVAL * 3 } else { soon };
            }
            Outcome::Recorded { record } => self.applied.set_recorded(&record),
            Outcome::Unrecorded { gpu, error } => {
                self.record_at = now + RECORD_RETRY_INTERVAL;
                self.node.on_unrecorded(gpu.as_ref(), &error, now);
            }
            Outcome::Created { gpu, id, result, .. } => {
                self.observe_soon_after(result.is_err(), now);
                self.observe_at = self.observe_at.min(now + NEW_DEVICE_DELAY);
                self.node.on_created(&gpu, &id, result, now);
            }
            Outcome::Switched { gpu, mig, result, .. } => {
                // A switch may change the instances, the placements and the GPU's minor number, so observe at once.
                self.observe_at = now;
                self.outlets.desired.reopen.ask();
                self.node.on_switched(&gpu, mig, result, now);
            }
            Outcome::Destroyed { gpu, instance, part, result, .. } => {
                self.observe_soon_after(result.is_err(), now);
                self.node.on_destroyed(&gpu, (instance, part), result, now);
            }
        }
    }

    /// After an error it is unknown what the call did, so observe at once.
    fn observe_soon_after(&mut self, failed: bool, now: Instant) {
        if failed {
            self.observe_at = now;
        }
    }

    /// Hands out the decision's parts, and returns when the next decision is due.
    fn hand_out(&mut self, mut decision: Decision, now: Instant, session: &Session) -> Instant {
        end_for_upgrade(&decision, session);
        decision.record = self.applied.complete(decision.record);
        let must_record = decision.slices.is_some() && !self.applied.is_recorded(&decision.record);
        self.serve_names(&decision, session.stop());
        self.publish_desired(&decision, must_record);
        for (name, list) in decision.lists {
            let sender = self.lists.get(&name);
            if sender.is_some_and(|sender| sender.send_if_modified(|old| replace(old, list))) {
                tracing::debug!(%name, "list changed");
            }
        }
        for event in decision.events {
            if let NodeEvent::Mismatch { .. } = event {
                self.outlets.metrics.count_mismatch();
            }
            let evicts = !decision.pods.evict.is_empty();
            node_events::publish(&self.outlets.recorder, event, evicts, |key| self.node.gpu_use().uid(key));
        }
        self.publish(decision.healthy, decision.status, decision.report);
        let write_at = self.answer_orders(&decision.record, now);
        for pod in decision.pods.look_up {
            // A failed send is harmless: the task that looks pods up has ended with the agent.
            drop(self.outlets.look_up.send(pod));
        }
        if decision.next.wants_holders {
            self.outlets.want_holders.notify_one();
        }
        if decision.next.wants_observation {
            let earliest = self.last_observed.map_or(now, |at| at + OBSERVE_INTERVAL);
            self.observe_at = self.observe_at.min(earliest);
        }
        if self.run_next(decision.step, decision.record, must_record, now) {
            // Decide again at once, because another GPU may have a step too.
            return now;
        }
        // While a call is under way the loop waits for its end, which is never far.
        let idle = if self.executor.is_idle() { self.observe_at } else { now + self.resync };
        let record_at = Some(self.record_at).filter(|_| must_record && self.executor.is_idle());
        [decision.next.due_at, record_at, write_at].into_iter().flatten().fold(idle, Instant::min)
    }

    /// Writes the checkpoint, observes the GPUs or runs the step, and returns whether it ran the step. A write or an
    /// observation concerns all GPUs: it waits for the calls under way, and none begins meanwhile.
    fn run_next(&mut self, step: Option<Step>, record: Restored, must_record: bool, now: Instant) -> bool {
        let (write, look) = (must_record && now >= self.record_at, now >= self.observe_at);
        if (write || look) && !self.executor.is_idle() {
            return false;
        }
        if write {
            // The step is dropped, because the next decision may not contain it. Its GPU is observed then.
            self.observe_at = step.map_or(self.observe_at, |_| now);
            self.executor.record(record);
            return false;
        }
        if look {
            self.outlets.want_holders.notify_one();
            self.executor.observe();
            return false;
        }
        let Some(call) = step.and_then(|step| self.node.start(&step)) else { return false };
        self.executor.run(call, record);
        true
    }

    /// Sends the answers to orders that are ready, and writes the checkpoint for the others. Returns when it must be
    /// written at the latest.
    fn answer_orders(&mut self, record: &Restored, now: Instant) -> Option<Instant> {
        self.unanswered.give();
        self.unanswered.write(record, &self.executor.checkpoint_writer(), now)
    }

    /// Sends the desired state to the reconcilers. Daemons, limits, lengths and pauses wait until the checkpoint has
    /// them, so that a restart can undo them.
    fn publish_desired(&self, decision: &Decision, unrecorded: bool) {
        fn set<T: PartialEq + Clone>(sender: &watch::Sender<T>, wanted: &T) {
            sender.send_if_modified(|old| {
                *old != *wanted && {
                    old.clone_from(wanted);
                    true
                }
            });
        }
        let slices = decision.slices.as_ref();
        if unrecorded {
            // Device files need no record, because `leave` and a later agent find them in their folders.
            let reach = slices.map(|slices| slices.reach.clone());
            self.outlets.desired.slices.send_if_modified(|old| {
                old.as_mut().zip(reach).is_some_and(|(old, reach)| replace(&mut old.reach, reach))
            });
        } else {
            set(&self.outlets.desired.slices, &decision.slices);
        }
        if slices.is_some() && !unrecorded {
            set(&self.outlets.desired.lengths, &decision.gpus.lengths);
            set(&self.outlets.desired.pause, &decision.gpus.pause);
        }
        set(&self.outlets.desired.remove_rejected, &decision.pods.remove_rejected);
        for (key, uid) in &decision.pods.evict {
            let why = "its processes hold more GPU memory than it was given".to_owned();
            // If the queue is full the eviction is skipped; the next decision requests it again.
            drop(self.outlets.desired.evict.try_send(Eviction { key: key.clone(), uid: uid.clone(), why }));
        }
    }

    fn publish(&mut self, healthy: DevicesByName, status: GpuNodeStatus, report: Report) {
        for (condition, holds) in report.readiness {
            self.outlets.readiness.set(condition, holds);
        }
        self.outlets.metrics.set_slices(&status);
        self.outlets.labels.send_if_modified(|old| replace(old, report.labels));
        self.outlets.gfd_labels.send_if_modified(|old| replace(old, report.gfd_labels));
        self.outlets.counts.send_if_modified(|old| replace(old, self.counts()));
        self.outlets.watched.send_if_modified(|old| replace(&mut old.healthy, healthy));
        let Some(state) = report.state else { return };
        self.outlets.reported.send_if_modified(|old| replace(old, state));
        if self.outlets.status.send_if_modified(|old| replace(old, status)) || self.measure {
            let gpu_use = self.node.gpu_use();
            let of_slice = |slice: &_| SliceUse {
                used: gpu_use.used(slice),
                requested: gpu_use.requested(slice),
                busy: gpu_use.busy(slice),
            };
            let busy = |gpu: &_| gpu_use.busy_gpu(gpu);
            self.outlets.metrics.set_each(&self.outlets.status.borrow(), of_slice, busy);
            self.outlets.metrics.set_over_use(gpu_use.over_used());
            self.measure = false;
        }
    }

    fn counts(&self) -> Counts {
        let count = |list: &[ListedDevice]| (list.len(), list.iter().filter(|d| d.healthy).count());
        self.lists.iter().map(|(name, list)| (*name, count(&list.borrow()))).collect()
    }

    /// Starts servers for names that have none yet. MIG mode and policy may add names; the lists of the others
    /// continue.
    fn serve_names(&mut self, decision: &Decision, stop: &CancellationToken) {
        let new: Vec<_> =
            decision.lists.keys().filter(|name| !self.lists.contains_key(name)).copied().collect();
        if new.is_empty() {
            return;
        }
        let serve = |name: ResourceName| {
            let list = watch::Sender::default();
            let allocations = self.outlets.allocations.clone();
            (Served { name, list: list.subscribe(), allocations }, (name, list))
        };
        let (served, lists): (Vec<_>, Vec<_>) = new.into_iter().map(serve).unzip();
        self.lists.extend(lists);
        let (folder, events) = (self.outlets.plugin_folder.clone(), self.outlets.events.clone());
        let number = self.plugins.len();
        let shown = move |result| events.send(Event::Registered(number, result));
        let serving =
            device_plugin::serve(folder, served, self.outlets.events.clone(), shown, stop.child_token());
        self.plugins.push(tokio::spawn(serving));
    }
}

/// Ends the session once the driver may be unloaded. An MPS daemon's folder exists until the daemon is gone, also if an
/// earlier process started it, so the session waits until no folder is left.
fn end_for_upgrade(decision: &Decision, session: &Session) {
    let Some(LetGo { evidence, daemons }) = &decision.let_go else { return };
    let daemons = daemons.as_ref().map(|folder| mps::targets(folder));
    match daemons {
        None => session.end(Ending::Upgrade(evidence.clone())),
        Some(Ok(daemons)) if daemons.is_empty() => session.end(Ending::Upgrade(evidence.clone())),
        Some(Ok(daemons)) => tracing::debug!(?daemons, "MPS daemons still hold the driver"),
        Some(Err(error)) => tracing::warn!(%error, "the MPS daemons' folders cannot be listed"),
    }
}

/// Replaces a value, and returns whether it changed.
fn replace<T: PartialEq>(old: &mut T, new: impl Into<T>) -> bool {
    let new = new.into();
    let differs = *old != new;
    if differs {
        *old = new;
    }
    differs
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
