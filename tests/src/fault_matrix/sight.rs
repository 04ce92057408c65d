//! Watches what the API server has of one node: its agent's status and its pods.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::names::PodUid;
use kerf_runtime::gpu_node::GpuNode;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The label with which a node's pods are found before they are bound.
pub(super) const FOR_NODE: &str = "fault-matrix";

/// The parts of a pod that the leader uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenPod {
    pub(super) uid: PodUid,
    pub(super) phase: String,
}

pub(super) type SeenPods = BTreeMap<String, SeenPod>;

/// The newest status and pods. Dropping it ends its watches.
pub(super) struct Sight {
    pub(super) status: watch::Receiver<GpuNodeStatus>,
    pub(super) pods: watch::Receiver<SeenPods>,
    _watches: JoinSet<()>,
}

impl Sight {
    pub(super) fn new(client: &Client, node: &str) -> Self {
        let mut watches = JoinSet::new();
        let (status, statuses) = watch::channel(GpuNodeStatus::default());
        let of_node = watcher::Config::default().fields(&format!("metadata.name={node}"));
        watches.spawn(watch_status(Api::all(client.clone()), of_node, status));
        let (pods, seen) = watch::channel(SeenPods::new());
        let of_node = watcher::Config::default().labels(&format!("{FOR_NODE}={node}"));
        watches.spawn(watch_pods(Api::default_namespaced(client.clone()), of_node, pods));
        Self { status: statuses, pods: seen, _watches: watches }
    }
}

async fn watch_status(api: Api<GpuNode>, of_node: watcher::Config, status: watch::Sender<GpuNodeStatus>) {
    let changes = watcher(api, of_node).default_backoff().touched_objects();
    tokio::pin!(changes);
    while let Some(change) = changes.next().await {
        let seen = change.ok().and_then(|object| object.read_status().ok().flatten());
        if let Some(seen) = seen {
            drop(status.send_replace(seen));
        }
    }
}

async fn watch_pods(api: Api<Pod>, of_node: watcher::Config, pods: watch::Sender<SeenPods>) {
    let changes = watcher(api, of_node).default_backoff();
    tokio::pin!(changes);
    let mut listed = SeenPods::new();
    while let Some(change) = changes.next().await {
        match change {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(pod)) => drop(listed.insert(name(&pod), see(&pod))),
            Ok(watcher::Event::InitDone) => drop(pods.send_replace(listed.clone())),
            Ok(watcher::Event::Apply(pod)) => {
                pods.send_modify(|seen| drop(seen.insert(name(&pod), see(&pod))));
            }
            Ok(watcher::Event::Delete(pod)) => pods.send_modify(|seen| drop(seen.remove(&name(&pod)))),
            Err(_) => {}
        }
    }
}

fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

fn see(pod: &Pod) -> SeenPod {
    let status = pod.status.clone().unwrap_or_default();
    SeenPod {
        uid: PodUid::new(pod.metadata.uid.clone().unwrap_or_default()),
        phase: status.phase.unwrap_or_default(),
    }
}
