//! GPU nodes that are objects and no more: no kubelet and no agent run there. This module plays the agents: every wanted slice is
//! ready as soon as it is wanted.

use std::collections::BTreeMap;

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Taint};
use kerf_core::contract::GpuNodeStatus;
use kerf_core::names::NodeName;
use kerf_core::testing::slice_status;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde_json::json;

/// What a Node object says of itself.
#[derive(Debug, Clone)]
pub struct NodeObject {
    /// Its name.
    pub name: String,
    /// Labels besides that of its name.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Its CPU, as a quantity.
    pub cpu: String,
}

impl NodeObject {
    /// A node with much CPU, and nothing that keeps pods away.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), labels: BTreeMap::new(), taints: Vec::new(), cpu: "64".to_owned() }
    }

    /// Creates the Node and its GpuNode with this status.
    pub async fn create(&self, client: &Client, status: &GpuNodeStatus) -> anyhow::Result<()> {
        let Self { name, labels, taints, cpu } = self;
        let mut labels = labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
        let room = json!({"cpu": cpu, "memory": "512Gi", "pods": "250"});
        let node = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
            "status": {"capacity": room, "allocatable": room},
        });
        let params = PostParams::default();
        let nodes = Api::<Node>::all(client.clone());
        let made = nodes.create(&params, &serde_json::from_value(node)?).await;
        made.with_context(|| format!("failed to make the node {name}"))?;
        let api = Api::<GpuNode>::all(client.clone());
        api.create(&params, &GpuNode::new(&NodeName::new(name))).await?;
        let status = Patch::Merge(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &status).await?;
        Ok(())
    }
}

/// Says of every wanted slice that it is ready for whom it is promised to, as long as it is polled. Slices that no spec has stay.
pub async fn play_agents(api: Api<GpuNode>) {
    let mut answered: BTreeMap<NodeName, u64> = BTreeMap::new();
    let mut nodes =
        Box::pin(watcher(api.clone(), watcher::Config::default()).default_backoff().applied_objects());
    while let Some(event) = nodes.next().await {
        let Ok(node) = event else { continue };
        let (Ok(spec), Ok(Some(status))) = (node.read_spec(), node.read_status()) else { continue };
        if answered.insert(node.name(), spec.revision) == Some(spec.revision) || spec.revision == 0 {
            continue;
        }
        let unasked = status.slices.iter().filter(|slice| slice.id.is_none()).cloned();
        let slices = unasked.chain(spec.slices.iter().map(|slice| slice_status(slice, false))).collect();
        let status = GpuNodeStatus { slices, observed_revision: spec.revision, ..status };
        let (api, name) = (api.clone(), node.name());
        let patch = Patch::Merge(json!({"status": status}));
        if let Err(error) = api.patch_status(name.as_str(), &PatchParams::default(), &patch).await {
            tracing::error!(%name, %error, "failed to write a GpuNode's status");
        }
    }
}
