//! The agent's one loop: events in, a decision, its parts handed out. At most one call to the GPUs is under way.
//!
//! observe → plan → check → execute → publish: the first three are [`Node`]'s, and pure; this module waits, hands out
//! and runs.

use crate::device_plugin::{self, Served};
use crate::executor::{Executor, Outcome};
use crate::gpu::GpuError;
use crate::metrics::Metrics;
use crate::node::{Allocatable, Decision, DevicesByName, Holders, ListedDevice, Node, NodePods};
use crate::pod_resources::Watched;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::names::{DeviceId, PodKey};
use kerf_core::resource::ResourceName;
use kerf_runtime::admin::Readiness;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// The wait after an observation that failed, and between observations for which a plan asks.
const OBSERVE_AGAIN: Duration = Duration::from_millis(300);

/// How long a call to the GPUs may take before the node counts as unserved. On a busy node the slowest take a few seconds.
const HANGS: Duration = Duration::from_secs(30);

/// What happens.
#[derive(Debug)]
pub enum Event {
    /// The GpuNode changed: the object's UID and its spec.
    Spec(Option<String>, Result<GpuNodeSpec, String>),
    /// The kubelet's account of holders.
    Holders(Result<Holders, String>),
    /// What the kubelet may hand out.
    Allocatable(Allocatable),
    /// A container is being given devices.
    Allocated(ResourceName, Vec<DeviceId>),
    /// A pod of this node is gone or finished.
    PodLeft(PodKey),
    /// The pods of this node that ask for kerf's names.
    Pods(NodePods),
    /// All names are registered, or why not.
    Registered(Result<(), String>),
}

/// Where events are sent.
#[derive(Debug, Clone)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// The two ends. Unbounded: every sender waits for an answer of its own before it has more to say.
    #[must_use]
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Sends. Once the loop has ended nobody listens, and that is no matter.
    pub fn send(&self, event: Event) {
        drop(self.0.send(event));
    }
}

/// Where decisions go.
pub struct Outlets {
    /// Events, for the servers that the loop starts.
    pub events: Events,
    /// The folder of the device plugin sockets.
    pub plugin_folder: PathBuf,
    /// Asks for the kubelet's account of holders.
    pub want_holders: Arc<Notify>,
    /// What the kubelet has to acknowledge.
    pub watched: watch::Sender<Watched>,
    /// The status to publish.
    pub status: watch::Sender<GpuNodeStatus>,
    /// Counts of devices by name, for onlookers at the node's status.
    pub counts: watch::Sender<Counts>,
    /// The node's labels.
    pub labels: watch::Sender<BTreeMap<String, Option<String>>>,
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
    plugins: Option<(CancellationToken, tokio::task::JoinHandle<()>)>,
    executor: Executor,
    resync: Duration,
    observe_at: Instant,
    last_observed: Option<Instant>,
}

impl Reconciler {
    /// A loop that has seen nothing yet.
    #[must_use]
    pub fn new(node: Node, outlets: Outlets, executor: Executor, resync: Duration) -> Self {
        let observe_at = Instant::now();
        let (lists, plugins, last_observed) = (BTreeMap::new(), None, None);
        Self { node, outlets, lists, plugins, executor, resync, observe_at, last_observed }
    }

    /// Runs until `stop`, and until the servers have closed.
    pub async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            // An allocation that was granted by an earlier decision's lists is known to this one.
            while let Ok(event) = events.try_recv() {
                self.take(event);
            }
            let now = Instant::now();
            self.look_for_a_hang(now);
            let decision = self.node.decide(now);
            let wake = self.hand_out(decision, now, &stop).await;
            tokio::select! {
                () = stop.cancelled() => break,
                outcome = self.executor.outcome() => self.take_outcome(outcome),
                event = events.recv() => {
                    let Some(event) = event else { break };
                    self.take(event);
                }
                () = tokio::time::sleep(wake.saturating_duration_since(now)) => {}
            }
        }
        if let Some((_, plugins)) = self.plugins.take() {
            drop(plugins.await);
        }
    }

    fn look_for_a_hang(&mut self, now: Instant) {
        let Some(since) = self.executor.busy_since() else { return };
        let busy = now.saturating_duration_since(since);
        if busy >= HANGS {
            self.node.on_observed(Err(GpuError::Hangs(HANGS.as_secs())));
            // The call's end, whenever it comes, is followed by an observation, which makes all well again.
            self.observe_at = now;
        }
    }

    fn take(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Spec(uid, spec) => self.node.on_spec(uid, spec),
            Event::Holders(holders) => self.node.on_holders(holders),
            Event::Allocatable(allocatable) => self.node.on_allocatable(allocatable),
            Event::Allocated(name, devices) => self.node.on_allocated(name, devices, now),
            Event::PodLeft(pod) => self.node.on_pod_left(pod, now),
            Event::Pods(pods) => self.node.on_pods(pods),
            Event::Registered(result) => {
                self.node.on_registration(result);
                self.outlets.watched.send_modify(|watched| watched.number += 1);
            }
        }
    }

    fn take_outcome(&mut self, outcome: Outcome) {
        let now = Instant::now();
        self.outlets.metrics.count(&outcome);
        match outcome {
            Outcome::Observed { result, .. } => {
                let failed = result.is_err();
                if let Err(error) = &result {
                    tracing::error!(%error, "the GPUs cannot be observed");
                }
                self.node.on_observed(result);
                self.last_observed = Some(now);
                self.observe_at = now + if failed { OBSERVE_AGAIN * 3 } else { self.resync };
            }
            Outcome::Created { gpu, id, result, .. } => {
                self.observe_soon_after(result.is_err(), now);
                self.node.on_created(&gpu, &id, result, now);
            }
            Outcome::Switched { gpu, mig, result, .. } => {
                // Instances, places and the GPU's number: all may be others now.
                self.observe_at = now;
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
    async fn hand_out(&mut self, decision: Decision, now: Instant, stop: &CancellationToken) -> Instant {
        self.serve_names(&decision, stop).await;
        for (name, list) in decision.lists {
            let sender = self.lists.get(&name);
            if sender.is_some_and(|sender| sender.send_if_modified(|old| replace(old, list))) {
                tracing::debug!(%name, "list changed");
            }
        }
        self.publish(decision.healthy, decision.status);
        if decision.wants_holders {
            self.outlets.want_holders.notify_one();
        }
        if decision.wants_observation {
            let earliest = self.last_observed.map_or(now, |at| at + OBSERVE_AGAIN);
            self.observe_at = self.observe_at.min(earliest);
        }
        if self.executor.is_idle() {
            match decision.step {
                _ if now >= self.observe_at => {
                    self.outlets.want_holders.notify_one();
                    self.executor.observe();
                }
                Some(next) => self.executor.run(next, &self.node),
                None => {}
            }
        }
        let idle = match self.executor.busy_since() {
            None => self.observe_at,
            Some(since) if since + HANGS > now => since + HANGS,
            Some(_) => now + HANGS,
        };
        decision.wake.map_or(idle, |wake| wake.min(idle))
    }

    fn publish(&self, healthy: DevicesByName, status: GpuNodeStatus) {
        for (condition, holds) in self.node.readiness() {
            self.outlets.readiness.set(condition, holds);
        }
        self.outlets.metrics.set_slices(&status);
        self.outlets.labels.send_if_modified(|old| {
            // Without GPUs nothing is known of the node yet.
            let labels = if status.gpus.is_empty() { BTreeMap::new() } else { self.node.labels() };
            replace(old, labels)
        });
        self.outlets.counts.send_if_modified(|old| replace(old, self.counts()));
        self.outlets.watched.send_if_modified(|old| replace(&mut old.healthy, healthy));
        self.outlets.status.send_if_modified(|old| replace(old, status));
    }

    fn counts(&self) -> Counts {
        let count = |list: &[ListedDevice]| (list.len(), list.iter().filter(|d| d.healthy).count());
        self.lists.iter().map(|(name, list)| (*name, count(&list.borrow()))).collect()
    }

    /// Serves all names of the node. They change only with the GPUs' MIG mode; then all are served anew.
    async fn serve_names(&mut self, decision: &Decision, stop: &CancellationToken) {
        let names: BTreeSet<_> = decision.lists.keys().collect();
        if names.is_empty() || self.lists.keys().collect::<BTreeSet<_>>() == names {
            return;
        }
        if let Some((stop, plugins)) = self.plugins.take() {
            stop.cancel();
            drop(plugins.await);
        }
        self.lists = decision.lists.keys().map(|name| (*name, watch::Sender::default())).collect();
        let served = self.lists.iter().map(|(name, list)| Served { name: *name, list: list.subscribe() });
        let token = stop.child_token();
        let (folder, events) = (self.outlets.plugin_folder.clone(), self.outlets.events.clone());
        let serving = device_plugin::serve(folder, served.collect(), events, token.clone());
        self.plugins = Some((token, tokio::spawn(serving)));
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
