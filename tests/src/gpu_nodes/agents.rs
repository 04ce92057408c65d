//! Simulated agents: all run in this process, each with its own node's identity, so that kerf's guard applies
//! to them.
//!
//! They keep their nodes' ledgers and dial the extender. Other code uses only the public part of this file.
//! All agents share one watch of `GpuNodes` and one of pods, while each real agent has its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, Request as HttpRequest};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{GpuNodeStatus, SliceState};
use kerf_core::keys;
use kerf_core::ledger::{BoundPod, Limits};
use kerf_core::names::{NodeName, PodUid};
use kerf_protocol::client::Plain;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::task::JoinSet;

use super::agent::Agent;
use crate::pods::is_finished;

/// Which cuts run one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CutLanes {
    /// All cuts of a node, as in the real agent.
    #[default]
    PerNode,
    /// All cuts of a GPU.
    PerGpu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// None: cuts do not end.
    Nothing,
    All,
    /// For each name only one pod's, until it holds them. The others wait, as if no two slices were
    /// interchangeable.
    FirstOfName,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    pub lanes: CutLanes,
    /// How long they keep unconfirmed reservations.
    pub limits: Limits,
    /// Whether [`SimulatedAgents::see_pod`] feeds them pods, in place of a watch of their own.
    pub are_shown_pods: bool,
}

/// What the agents report now, summed over the nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Slices that are reserved for a pod that does not hold them yet.
    pub reserved: usize,
    pub held: usize,
    /// Slices without holder and reservation.
    pub idle: usize,
}

impl Census {
    /// Slices that pods hold or will hold.
    #[must_use]
    pub fn occupied(self) -> usize {
        self.reserved + self.held
    }
}

/// The agents of all `GpuNodes`. Dropping it ends them.
pub struct SimulatedAgents {
    shared: Arc<Shared>,
    _watching: JoinSet<()>,
}

/// The state that all agents share.
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) lanes: CutLanes,
    pub(super) limits: Limits,
    /// The addresses that they dial.
    pub(super) extenders: Arc<Plain>,
    cut_ms: AtomicU64,
    offer: Mutex<Offer>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    agents: BTreeMap<NodeName, Arc<Agent>>,
    tasks: JoinSet<()>,
    /// Pods that are bound and have not ended, with their nodes.
    pods: BTreeMap<PodUid, NodeName>,
    /// Pods of a list that is being read.
    listed: BTreeSet<PodUid>,
}

impl SimulatedAgents {
    /// Starts an agent for each existing and each later GpuNode, which dials the extender at these addresses.
    /// At first a cut takes no time, and a bound pod holds its slices at once.
    ///
    /// `client` is an admin's, which may impersonate the agents.
    #[must_use]
    pub fn start(client: &Client, extenders: Vec<String>, manner: Manner) -> Self {
        let shared = Arc::new(Shared {
            client: client.clone(),
            lanes: manner.lanes,
            limits: manner.limits,
            extenders: Arc::new(Plain { extenders }),
            cut_ms: AtomicU64::new(0),
            offer: Mutex::new(Offer::All),
            running: Mutex::default(),
        });
        let mut watching = JoinSet::new();
        watching.spawn(watch_nodes(Arc::clone(&shared)));
        if !manner.are_shown_pods {
            watching.spawn(watch_pods(Arc::clone(&shared)));
        }
        Self { shared, _watching: watching }
    }

    /// Sets how long each further cut takes.
    pub fn set_cut(&self, time: Duration) {
        self.shared.cut_ms.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets which slices become ready from now on.
    pub fn set_offer(&self, offer: Offer) {
        *self.shared.offer.lock().unwrap_or_else(PoisonError::into_inner) = offer;
        for agent in self.shared.running().agents.values() {
            agent.offer_otherwise();
        }
    }

    /// Feeds an event of a watch of all pods to agents that have none.
    pub fn see_pod(&self, event: &watcher::Event<Pod>) {
        self.shared.see_pod(event);
    }

    pub fn status(&self, node: &str) -> anyhow::Result<GpuNodeStatus> {
        Ok(self.agent(node)?.status())
    }

    /// The highest epoch that a leader has announced to a node's agent.
    pub fn epoch(&self, node: &str) -> anyhow::Result<u64> {
        Ok(self.agent(node)?.epoch())
    }

    /// Names of the pods that a node's slices are reserved for, one for each slice.
    pub fn reserved(&self, node: &str) -> anyhow::Result<Vec<String>> {
        let slices = self.status(node)?.slices;
        Ok(slices.into_iter().filter_map(|slice| Some(slice.reservation?.pod)).collect())
    }

    #[must_use]
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for agent in self.shared.running().agents.values() {
            for slice in agent.status().slices {
                match slice.state {
                    SliceState::Held => census.held += 1,
                    SliceState::Idle => census.idle += 1,
                    _ => census.reserved += 1,
                }
            }
        }
        census
    }

    fn agent(&self, node: &str) -> anyhow::Result<Arc<Agent>> {
        let agent = self.shared.running().agents.get(&NodeName::new(node)).cloned();
        agent.with_context(|| format!("{node} has no agent"))
    }
}

impl Drop for SimulatedAgents {
    fn drop(&mut self) {
        // Agents and their shared state refer to each other, so the cycle is broken here.
        *self.shared.running() = Running::default();
    }
}

impl Shared {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cut(&self) -> Duration {
        Duration::from_millis(self.cut_ms.load(Ordering::Relaxed))
    }

    pub(super) fn offer(&self) -> Offer {
        *self.offer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes these fields of the status, as the node's agent.
    pub(super) async fn write(
        &self,
        node: &NodeName,
        fields: &serde_json::Map<String, serde_json::Value>,
    ) -> anyhow::Result<()> {
        patch_status(&self.client, node.as_str(), &json!({"status": fields})).await
    }

    fn see_node(self: &Arc<Self>, node: &GpuNode) {
        // An unreadable document is skipped, because the extender reports it and the next version may be readable.
        let (Ok(spec), Ok(Some(status))) = (node.read_spec(), node.read_status()) else { return };
        let name = node.name();
        let mut running = self.running();
        let Running { agents, tasks, pods, .. } = &mut *running;
        let agent = agents.entry(name.clone()).or_insert_with(|| {
            let here = pods.iter().filter(|(_, node)| **node == name).map(|(uid, _)| uid.clone()).collect();
            let agent = Agent::new(name, status, here, Arc::clone(self));
            tasks.spawn(Arc::clone(&agent).run());
            agent
        });
        agent.follow_policy(spec.policy);
    }

    fn see_pod(&self, event: &watcher::Event<Pod>) {
        let mut running = self.running();
        match event {
            watcher::Event::Init => running.listed.clear(),
            watcher::Event::InitApply(pod) => {
                running.listed.extend(uid(pod));
                running.apply(pod);
            }
            watcher::Event::InitDone => {
                let Running { listed, pods, .. } = &mut *running;
                let missing: Vec<_> = pods.extract_if(.., |uid, _| !listed.contains(uid)).collect();
                for (uid, node) in missing {
                    running.tell(&node, &uid, None);
                }
            }
            watcher::Event::Apply(pod) => running.apply(pod),
            watcher::Event::Delete(pod) => running.end(pod),
        }
    }
}

impl Running {
    fn apply(&mut self, pod: &Pod) {
        if is_finished(pod) {
            return self.end(pod);
        }
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let (Some(uid), Some(node)) = (uid(pod), node.map(NodeName::new)) else { return };
        if self.pods.insert(uid.clone(), node.clone()).is_none() {
            self.tell(&node, &uid, Some(BoundPod::Alive));
        }
    }

    fn end(&mut self, pod: &Pod) {
        if let Some((uid, node)) = uid(pod).and_then(|uid| self.pods.remove_entry(&uid)) {
            self.tell(&node, &uid, Some(BoundPod::Ended));
        }
    }

    fn tell(&self, node: &NodeName, uid: &PodUid, pod: Option<BoundPod>) {
        if let Some(agent) = self.agents.get(node) {
            agent.pod(uid, pod);
        }
    }
}

fn uid(pod: &Pod) -> Option<PodUid> {
    pod.metadata.uid.as_ref().map(PodUid::new)
}

async fn watch_nodes(shared: Arc<Shared>) {
    let api = Api::<GpuNode>::all(shared.client.clone());
    let mut nodes = Box::pin(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
    while let Some(event) = nodes.next().await {
        if let Ok(node) = event {
            shared.see_node(&node);
        }
    }
}

async fn watch_pods(shared: Arc<Shared>) {
    let api = Api::<Pod>::all(shared.client.clone());
    let mut pods = Box::pin(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = pods.next().await {
        if let Ok(event) = event {
            shared.see_pod(&event);
        }
    }
}

/// Creates a GpuNode with this status, as the node's agent.
pub(super) async fn register(client: &Client, node: &str, status: &GpuNodeStatus) -> anyhow::Result<()> {
    let object = serde_json::to_vec(&GpuNode::new(&NodeName::new(node)))?;
    let create = Request::new(path()).create(&PostParams::default(), object)?;
    let _: IgnoredAny = client.request(as_agent(node, create)?).await?;
    patch_status(client, node, &json!({"status": status})).await
}

async fn patch_status(client: &Client, node: &str, patch: &serde_json::Value) -> anyhow::Result<()> {
    let patch = Patch::Merge(patch);
    let request = Request::new(path()).patch_subresource("status", node, &PatchParams::default(), &patch)?;
    let _: IgnoredAny = client.request(as_agent(node, request)?).await?;
    Ok(())
}

fn path() -> String {
    format!("/apis/{}/gpunodes", keys::API_VERSION)
}

/// Impersonates a pod of the agents' `DaemonSet` on this node, whose token has the node's name.
fn as_agent(node: &str, mut request: HttpRequest<Vec<u8>>) -> anyhow::Result<HttpRequest<Vec<u8>>> {
    const USER: &str = "system:serviceaccount:kerf-system:kerf-node-agent";
    const NODE: &[u8] = b"impersonate-extra-authentication.kubernetes.io%2fnode-name";
    let headers = request.headers_mut();
    headers.insert("impersonate-user", HeaderValue::from_static(USER));
    headers.insert(HeaderName::from_bytes(NODE)?, HeaderValue::from_str(node)?);
    Ok(request)
}
