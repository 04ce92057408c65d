//! The agent's one loop: events in, a decision, its parts handed out. At most one call is under way on each GPU, and none while all are
//! looked at.
//!
//! observe → plan → check → execute → publish: the first three are [`Node`]'s, and pure; this module waits, hands out
//! and runs.

use crate::app::Keepers;
use crate::device_plugin::{self, Allocations, Served};
use crate::ending::{Ending, Session};
use crate::event::{Event, Events};
use crate::executor::{Executor, Outcome};
use crate::metrics::{Metrics, SliceUse};
use crate::mps;
use crate::node::Note;
use crate::node::{Decision, DevicesByName, LetGo, ListedDevice, Node, Recalled};
use crate::pod_lookup;
use crate::pod_resources::Watched;
use crate::recorder::Recorder;
use crate::rejected::Eviction;
use crate::standing::Standing;
use crate::tell;
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

/// The wait after an observation that failed, and between observations for which a plan asks.
const OBSERVE_AGAIN: Duration = Duration::from_millis(300);

/// How often the GPUs are looked at while they are shared: a pod that uses more than its share is told within ten seconds.
const LOOK_AT_SHARES: Duration = Duration::from_secs(4);

/// How long after a cut the GPUs are looked at: what a new MIG device has is told in labels, for which nobody waits.
const LOOK_AT_THE_NEW: Duration = Duration::from_secs(5);

/// The wait after the record could not be written: shorter than the node's own, so that it is told of until it is written.
const RECORD_AGAIN: Duration = Duration::from_secs(1);

/// Where decisions go.
pub struct Outlets {
    /// Events, for the servers that the loop starts.
    pub events: Events,
    /// Allocations under way, during which the kubelet is not asked who holds what.
    pub allocations: Allocations,
    /// The folder of the device plugin sockets.
    pub plugin_folder: PathBuf,
    /// Asks for the kubelet's account of holders.
    pub want_holders: Arc<Notify>,
    /// What the kubelet has to acknowledge.
    pub watched: watch::Sender<Watched>,
    /// The status to publish.
    pub status: watch::Sender<GpuNodeStatus>,
    /// The node as the extender's copy of it is to be.
    pub reported: watch::Sender<Arc<NodeState>>,
    /// Pods to look up.
    pub look_up: mpsc::UnboundedSender<pod_lookup::Wanted>,
    /// Counts of devices by name, for onlookers at the node's status.
    pub counts: watch::Sender<Counts>,
    /// The node's labels.
    pub labels: watch::Sender<BTreeMap<String, Option<String>>>,
    /// What NVIDIA's labels would say of the node.
    pub gfd_labels: watch::Sender<GfdLabels>,
    /// Those who keep the node as it should be.
    pub keepers: Keepers,
    /// Kubernetes Events.
    pub recorder: Recorder,
    /// `/readyz`.
    pub readiness: Readiness,
    /// `/metrics`.
    pub metrics: Metrics,
}

/// Devices of each name: all, and the healthy ones.
pub type Counts = BTreeMap<ResourceName, (usize, usize)>;

/// The loop.
pub struct Reconciler {
    node: Node,
    outlets: Outlets,
    lists: BTreeMap<ResourceName, watch::Sender<Arc<Vec<ListedDevice>>>>,
    /// Servers of names, and which of them have registered theirs. Names are added while the agent runs, and never taken back.
    plugins: Vec<tokio::task::JoinHandle<()>>,
    registered: BTreeMap<usize, Result<(), String>>,
    executor: Executor,
    standing: Standing,
    unanswered: Unanswered,
    record_at: Instant,
    resync: Duration,
    observe_at: Instant,
    last_observed: Option<Instant>,
    /// Whether memory was looked at since it was last measured.
    measure: bool,
}

impl Reconciler {
    /// A loop that has seen nothing yet.
    #[must_use]
    pub fn new(
        (node, standing): (Node, Standing),
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
            standing,
            record_at: observe_at,
            resync,
            observe_at,
            last_observed,
            measure: false,
        }
    }

    /// Runs until the session ends, and until the servers have closed.
    pub async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>, session: Session) {
        let stop = session.stop();
        while !stop.is_cancelled() {
            // An allocation that was granted by an earlier decision's lists is known to this one.
            while let Ok(event) = events.try_recv() {
                self.take(event);
            }
            let now = Instant::now();
            self.node.on_disk(self.unanswered.trouble(now));
            let decision = self.node.decide(now);
            let wake = self.hand_out(decision, now, &session);
            tokio::select! {
                () = stop.cancelled() => break,
                outcome = self.executor.outcome() => self.take_outcome(outcome, &session),
                written = self.unanswered.written() => {
                    self.unanswered.answer(written, &mut self.node, &mut self.standing, Instant::now());
                }
                event = events.recv() => {
                    let Some(event) = event else { break };
                    self.take(event);
                }
                () = tokio::time::sleep(wake.saturating_duration_since(now)) => {}
            }
        }
        let record = self.standing.complete(self.node.decide(Instant::now()).record);
        let recording = self.executor.recording();
        if let Err(error) = recording.leave(record).await {
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
                self.standing.on_daemons(&daemons);
                self.node.on_daemons(daemons);
            }
            Event::ServerLost(gpu, how) => self.node.on_server_lost(&gpu, &how),
            Event::Limits(limits) => self.standing.on_limits(limits),
            Event::Reachable(reachable) => self.node.on_reachable(reachable),
            Event::Trouble(event) => {
                self.observe_at = now;
                self.node.on_trouble(event, now);
            }
            Event::Others(others) => self.node.on_others(others, now),
            Event::Upgrade(upgrade) => self.node.on_upgrade(upgrade),
            Event::Deployed(labels) => self.node.on_deployed(labels),
            Event::Paused(labels, cleared) => self.node.on_paused(labels, cleared),
        }
    }

    /// All is registered once every server has registered its names.
    fn take_registration(&mut self, server: usize, result: Result<(), String>) {
        self.registered.insert(server, result);
        let failed = self.registered.values().find_map(|r| r.as_ref().err().cloned());
        let whole = self.registered.len() == self.plugins.len();
        match failed {
            Some(error) => self.node.on_registration(Err(error)),
            None if whole => self.node.on_registration(Ok(self.lists.keys().copied().collect())),
            None => {}
        }
        self.outlets.watched.send_modify(|watched| watched.number += 1);
    }

    fn take_outcome(&mut self, outcome: Outcome, session: &Session) {
        let now = Instant::now();
        self.outlets.metrics.count(&outcome);
        match outcome {
            Outcome::Over(ending) => session.end(ending),
            Outcome::Observed { result, usage, .. } => {
                let failed = result.is_err();
                if let Err(error) = &result {
                    tracing::error!(%error, "the GPUs cannot be observed");
                }
                let before = self.node.answering();
                match result {
                    Ok((gpus, silent)) => {
                        self.node.on_silent(silent);
                        self.node.on_observed(Ok(gpus));
                    }
                    Err(error) => self.node.on_observed(Err(error)),
                }
                // One that was away may have another handle, and nobody listens to one that never answered before.
                if self.last_observed.is_some() && !self.node.answering().is_subset(&before) {
                    self.outlets.keepers.reopen.ask();
                }
                self.node.on_usage(usage);
                self.measure = true;
                self.last_observed = Some(now);
                let soon = if self.node.has_shares() { self.resync.min(LOOK_AT_SHARES) } else { self.resync };
                self.observe_at = now + if failed { OBSERVE_AGAIN * 3 } else { soon };
            }
            Outcome::Recorded { record } => self.standing.note_recorded(&record),
            Outcome::Unrecorded { gpu, error } => {
                self.record_at = now + RECORD_AGAIN;
                self.node.on_unrecorded(gpu.as_ref(), &error, now);
            }
            Outcome::Created { gpu, id, result, .. } => {
                self.observe_soon_after(result.is_err(), now);
                self.observe_at = self.observe_at.min(now + LOOK_AT_THE_NEW);
                self.node.on_created(&gpu, &id, result, now);
            }
            Outcome::Switched { gpu, mig, result, .. } => {
                // Instances, places and the GPU's number: all may be others now.
                self.observe_at = now;
                self.outlets.keepers.reopen.ask();
                self.node.on_switched(&gpu, mig, result, now);
            }
            Outcome::Destroyed { gpu, instance, part, result, .. } => {
                self.observe_soon_after(result.is_err(), now);
                self.node.on_destroyed(&gpu, (instance, part), result, now);
            }
        }
    }

    /// After an error nobody knows what was done.
    fn observe_soon_after(&mut self, failed: bool, now: Instant) {
        if failed {
            self.observe_at = now;
        }
    }

    /// Hands the decision's parts out. Gives the time of the next one.
    fn hand_out(&mut self, mut decision: Decision, now: Instant, session: &Session) -> Instant {
        end_for_upgrade(&decision, session);
        decision.record = self.standing.complete(decision.record);
        let must_record = decision.kept.is_some() && !self.standing.is_recorded(&decision.record);
        self.serve_names(&decision, session.stop());
        self.hand_to_keepers(&decision, must_record);
        for (name, list) in decision.lists {
            let sender = self.lists.get(&name);
            if sender.is_some_and(|sender| sender.send_if_modified(|old| replace(old, list))) {
                tracing::debug!(%name, "list changed");
            }
        }
        for note in decision.notes {
            if let Note::Mismatch { .. } = note {
                self.outlets.metrics.count_mismatch();
            }
            let evicts = !decision.evict.is_empty();
            tell::tell(&self.outlets.recorder, note, evicts, |key| self.node.uid_of(key));
        }
        self.publish(decision.healthy, decision.status);
        let write_at = self.answer_orders(&decision.record, now);
        for pod in decision.look_up {
            // The task that looks pods up ends with the agent.
            drop(self.outlets.look_up.send(pod));
        }
        if decision.wants_holders {
            self.outlets.want_holders.notify_one();
        }
        if decision.wants_observation {
            let earliest = self.last_observed.map_or(now, |at| at + OBSERVE_AGAIN);
            self.observe_at = self.observe_at.min(earliest);
        }
        if self.run_next(decision.step, decision.record, must_record, now) {
            // There may be a step for another GPU.
            return now;
        }
        // While a call is under way its end is waited for, which is never far.
        let idle = if self.executor.is_idle() { self.observe_at } else { now + self.resync };
        let record_at = Some(self.record_at).filter(|_| must_record && self.executor.is_idle());
        [decision.wake, record_at, write_at].into_iter().flatten().fold(idle, Instant::min)
    }

    /// Writes the record, looks at the GPUs or runs the step. Whether it is the step. What is for all GPUs waits for the calls that are
    /// under way, and none begins meanwhile.
    fn run_next(&mut self, step: Option<Step>, record: Recalled, must_record: bool, now: Instant) -> bool {
        let (write, look) = (must_record && now >= self.record_at, now >= self.observe_at);
        if (write || look) && !self.executor.is_idle() {
            return false;
        }
        if write {
            // A step that was decided on may be none by the next decision; what it was about is looked at then.
            self.observe_at = step.map_or(self.observe_at, |_| now);
            self.executor.record(record);
            return false;
        }
        if look {
            self.outlets.want_holders.notify_one();
            self.executor.observe();
            return false;
        }
        let Some(step) = step else { return false };
        let begins = self.executor.run(step.clone(), &self.node, record);
        if begins {
            self.node.on_started(&step);
        }
        begins
    }

    /// Gives the answers to orders that wait for nothing more, and writes the record that the others wait for. Returns when it is to
    /// be written at the latest.
    fn answer_orders(&mut self, record: &Recalled, now: Instant) -> Option<Instant> {
        self.unanswered.give();
        self.unanswered.write(record, &self.executor.recording(), now)
    }

    /// What is to be so, to those who make it so. Daemons, limits, lengths and pauses wait until a restart would know of them.
    fn hand_to_keepers(&self, decision: &Decision, unrecorded: bool) {
        fn set<T: PartialEq + Clone>(sender: &watch::Sender<T>, wanted: &T) {
            sender.send_if_modified(|old| {
                *old != *wanted && {
                    old.clone_from(wanted);
                    true
                }
            });
        }
        let kept = decision.kept.as_ref();
        if unrecorded {
            let reach = kept.map(|kept| kept.reach.clone());
            self.outlets.keepers.kept.send_if_modified(|old| {
                old.as_mut().zip(reach).is_some_and(|(old, reach)| replace(&mut old.reach, reach))
            });
        } else {
            set(&self.outlets.keepers.kept, &decision.kept);
        }
        if kept.is_some() && !unrecorded {
            set(&self.outlets.keepers.lengths, &decision.lengths);
            set(&self.outlets.keepers.pause, &decision.pause);
        }
        set(&self.outlets.keepers.remove_rejected, &decision.remove_rejected);
        for (key, uid) in &decision.evict {
            let why = "its processes hold more GPU memory than it was given".to_owned();
            // A full queue has it already; what is still to go is asked for again.
            drop(self.outlets.keepers.evict.try_send(Eviction { key: key.clone(), uid: uid.clone(), why }));
        }
    }

    fn publish(&mut self, healthy: DevicesByName, status: GpuNodeStatus) {
        for (condition, holds) in self.node.readiness() {
            self.outlets.readiness.set(condition, holds);
        }
        self.outlets.metrics.set_slices(&status);
        self.outlets.labels.send_if_modified(|old| replace(old, self.node.labels()));
        self.outlets.gfd_labels.send_if_modified(|old| replace(old, self.node.gfd_labels()));
        self.outlets.counts.send_if_modified(|old| replace(old, self.counts()));
        self.outlets.watched.send_if_modified(|old| replace(&mut old.healthy, healthy));
        // Until then nobody is told that the node has no GPUs.
        if !self.node.has_looked() {
            return;
        }
        let state = Arc::new(self.node.state(&status));
        self.outlets.reported.send_if_modified(|old| replace(old, state));
        if self.outlets.status.send_if_modified(|old| replace(old, status)) || self.measure {
            let of_slice = |slice: &_| SliceUse {
                used: self.node.used(slice),
                requested: self.node.requested(slice),
                busy: self.node.busy(slice),
            };
            let busy = |gpu: &_| self.node.busy_gpu(gpu);
            self.outlets.metrics.set_each(&self.outlets.status.borrow(), of_slice, busy);
            self.outlets.metrics.set_over_use(self.node.over_used());
            self.measure = false;
        }
    }

    fn counts(&self) -> Counts {
        let count = |list: &[ListedDevice]| (list.len(), list.iter().filter(|d| d.healthy).count());
        self.lists.iter().map(|(name, list)| (*name, count(&list.borrow()))).collect()
    }

    /// Serves the names that are not served yet. The GPUs' MIG mode and policy may add some; the others' lists go on.
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
        let told = move |result| events.send(Event::Registered(number, result));
        let serving =
            device_plugin::serve(folder, served, self.outlets.events.clone(), told, stop.child_token());
        self.plugins.push(tokio::spawn(serving));
    }
}

/// Ends the session once the driver may go. The folder of an MPS daemon stays until the daemon is gone, also one that an earlier
/// process has started.
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

/// Replaces a value; whether it was another.
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
