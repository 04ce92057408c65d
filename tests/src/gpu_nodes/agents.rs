//! Simulated agents: all of them in this process, each with its own node's identity, so that kerf's guard holds for them.
//!
//! They answer the documents of `GpuNodes` through the API server, or keep their node's ledger and dial the extender. What others may rely
//! on is the public part of this file and no more. They watch all `GpuNodes` by one watch; real agents have one each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, Request as HttpRequest};
use kerf_core::contract::GpuNodeStatus;
use kerf_core::keys;
use kerf_core::names::{NodeName, PodUid};
use kerf_protocol::client::Plain;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::agent::{Agent, Event};
use super::ledger_agent::LedgerAgent;

/// Which cuts wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutLanes {
    /// Those of a node, as in today's agent.
    PerNode,
    /// Those of a GPU.
    PerGpu,
}

/// What the agents last reported, summed over the nodes.
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
    watching: AbortHandle,
}

/// What all agents have in common.
pub(super) struct Shared {
    client: Client,
    pub(super) lanes: CutLanes,
    cut_ms: AtomicU64,
    census: Mutex<BTreeMap<NodeName, Census>>,
    /// Where agents dial that keep their node's ledger; without it none does.
    extender: Option<Arc<Plain>>,
    events: Mutex<BTreeMap<NodeName, UnboundedSender<Event>>>,
}

impl SimulatedAgents {
    /// Starts an agent for each GpuNode that there is or will be. A cut takes no time.
    ///
    /// `client` is an admin's, who may speak in the agents' names.
    #[must_use]
    pub fn start(client: &Client, lanes: CutLanes) -> Self {
        Self::start_with(client, lanes, None)
    }

    /// The same of agents that keep their node's ledger and dial the extender at this address.
    #[must_use]
    pub fn dialling(client: &Client, lanes: CutLanes, extender: String) -> Self {
        Self::start_with(client, lanes, Some(extender))
    }

    fn start_with(client: &Client, lanes: CutLanes, extender: Option<String>) -> Self {
        let shared = Arc::new(Shared {
            client: client.clone(),
            lanes,
            cut_ms: AtomicU64::new(0),
            census: Mutex::default(),
            extender: extender.map(|address| Arc::new(Plain { extenders: vec![address] })),
            events: Mutex::default(),
        });
        let watching = tokio::spawn(watch(Arc::clone(&shared))).abort_handle();
        Self { shared, watching }
    }

    /// How long a cut takes that begins from now on.
    pub fn set_cut(&self, time: Duration) {
        self.shared.cut_ms.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The kubelet of `node` has given the pod its devices.
    pub fn allocated(&self, node: &str, pod: &str) {
        self.shared.send(node, Event::Allocated(PodUid::new(pod)));
    }

    /// The pod on `node` has ended.
    pub fn ended(&self, node: &str, pod: &str) {
        self.shared.send(node, Event::Ended(PodUid::new(pod)));
    }

    /// What the agents last reported.
    #[must_use]
    pub fn census(&self) -> Census {
        let all = self.shared.census.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().fold(Census::default(), |sum, one| Census {
            reserved: sum.reserved + one.reserved,
            held: sum.held + one.held,
            idle: sum.idle + one.idle,
        })
    }
}

impl Drop for SimulatedAgents {
    fn drop(&mut self) {
        self.watching.abort();
        // An agent ends once its events' sender is gone.
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Shared {
    fn send(&self, node: &str, event: Event) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = events.get(&NodeName::new(node)) {
            // An agent that has ended was told to.
            let _ = agent.send(event);
        }
    }

    pub(super) fn cut(&self) -> Duration {
        Duration::from_millis(self.cut_ms.load(Ordering::Relaxed))
    }

    pub(super) fn report(&self, node: &NodeName, census: Census) {
        self.census.lock().unwrap_or_else(PoisonError::into_inner).insert(node.clone(), census);
    }

    /// Writes these fields of the status, as the node's agent.
    pub(super) async fn write(
        &self,
        node: &NodeName,
        fields: &serde_json::Map<String, serde_json::Value>,
    ) -> anyhow::Result<()> {
        patch_status(&self.client, node.as_str(), &json!({"status": fields})).await
    }
}

async fn watch(shared: Arc<Shared>) {
    let api = Api::<GpuNode>::all(shared.client.clone());
    let mut nodes = Box::pin(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
    while let Some(event) = nodes.next().await {
        let Ok(node) = event else { continue };
        // The extender reports documents that cannot be read; the agents wait for the next ones.
        let (Ok(spec), Ok(Some(status))) = (node.read_spec(), node.read_status()) else { continue };
        let name = node.name();
        let known = shared.events.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&name);
        if !known {
            let (sender, events) = unbounded_channel();
            spawn(&shared, name.clone(), status, events);
            shared.events.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), sender);
        }
        shared.send(name.as_str(), Event::Spec(Box::new(spec)));
    }
}

fn spawn(shared: &Arc<Shared>, name: NodeName, status: GpuNodeStatus, events: UnboundedReceiver<Event>) {
    let shared = Arc::clone(shared);
    if let Some(extender) = shared.extender.clone() {
        tokio::spawn(LedgerAgent::new(name, status, shared).run(extender, events));
    } else {
        tokio::spawn(Agent::new(name, status, shared).run(events));
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
