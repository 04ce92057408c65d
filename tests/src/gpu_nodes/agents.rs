//! Simulated agents: all of them in this process, each with its own node's identity, so that kerf's guard holds for them.
//!
//! They keep their node's ledger and dial the extender. What others may rely on is the public part of this file and no more. They watch
//! all `GpuNodes` and pods by one watch each; real agents have their own.

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

/// Which cuts wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CutLanes {
    /// Those of a node, as in today's agent.
    #[default]
    PerNode,
    /// Those of a GPU.
    PerGpu,
}

/// Which slices are made and offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// None: cuts do not end.
    Nothing,
    /// All.
    All,
    /// Of one name those of one pod, until it holds them; the others wait, as if no two were worth the same.
    FirstOfName,
}

/// How agents work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// Which cuts wait for each other.
    pub lanes: CutLanes,
    /// How long they keep what nobody confirms.
    pub limits: Limits,
    /// Whether pods are shown to them by [`SimulatedAgents::see_pod`] and not by a watch of their own.
    pub are_shown_pods: bool,
}

/// What the agents report now, summed over the nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Census {
    /// Slices that are reserved for a pod that has not got them yet.
    pub reserved: usize,
    /// Slices that pods hold.
    pub held: usize,
    /// Slices without a pod.
    pub idle: usize,
}

impl Census {
    /// Slices that pods hold or will hold.
    #[must_use]
    pub fn occupied(self) -> usize {
        self.reserved + self.held
    }
}

/// The agents of all `GpuNodes`. They end when this is dropped.
pub struct SimulatedAgents {
    shared: Arc<Shared>,
    _watching: JoinSet<()>,
}

/// What all agents have in common.
pub(super) struct Shared {
    pub(super) client: Client,
    pub(super) lanes: CutLanes,
    pub(super) limits: Limits,
    /// Where they dial.
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
    /// Those of a list that is being read.
    listed: BTreeSet<PodUid>,
}

impl SimulatedAgents {
    /// Starts an agent for each GpuNode that there is or will be, which dials the extender's replicas at these addresses. A cut takes no
    /// time, and a pod that is bound holds its slices at once.
    ///
    /// `client` is an admin's, who may speak in the agents' names.
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

    /// How long a cut takes that begins from now on.
    pub fn set_cut(&self, time: Duration) {
        self.shared.cut_ms.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Which slices are made and offered from now on.
    pub fn set_offer(&self, offer: Offer) {
        *self.shared.offer.lock().unwrap_or_else(PoisonError::into_inner) = offer;
        for agent in self.shared.running().agents.values() {
            agent.offer_otherwise();
        }
    }

    /// What a watch of all pods brings, for agents that have none.
    pub fn see_pod(&self, event: &watcher::Event<Pod>) {
        self.shared.see_pod(event);
    }

    /// What a node's agent reports now.
    pub fn status(&self, node: &str) -> anyhow::Result<GpuNodeStatus> {
        Ok(self.agent(node)?.status())
    }

    /// The highest epoch that a node's agent has heard.
    pub fn epoch(&self, node: &str) -> anyhow::Result<u64> {
        Ok(self.agent(node)?.epoch())
    }

    /// For which pods slices of a node are reserved, by their names, one for each slice.
    pub fn reserved(&self, node: &str) -> anyhow::Result<Vec<String>> {
        let slices = self.status(node)?.slices;
        Ok(slices.into_iter().filter_map(|slice| Some(slice.reservation?.pod)).collect())
    }

    /// What all agents report now.
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
        // Agents and what they share hold each other.
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
        // Documents that cannot be read are reported by the extender; the agents wait for the next ones.
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

pub(super) fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
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

/// Makes a GpuNode with this status, as the node's agent.
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

/// The request of a pod of the agents' `DaemonSet` on this node: its token carries the node's name.
fn as_agent(node: &str, mut request: HttpRequest<Vec<u8>>) -> anyhow::Result<HttpRequest<Vec<u8>>> {
    const USER: &str = "system:serviceaccount:kerf-system:kerf-node-agent";
    const NODE: &[u8] = b"impersonate-extra-authentication.kubernetes.io%2fnode-name";
    let headers = request.headers_mut();
    headers.insert("impersonate-user", HeaderValue::from_static(USER));
    headers.insert(HeaderName::from_bytes(NODE)?, HeaderValue::from_str(node)?);
    Ok(request)
}
