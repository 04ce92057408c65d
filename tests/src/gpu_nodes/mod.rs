//! GPU nodes that are objects and no more: no kubelet and no agent run there. [`SimulatedAgents`] answers in place of the agents.

mod agent;
mod agents;

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Taint};
use kerf_core::contract::{ConditionStatus, GpuNodeStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

pub use agents::{Census, CutLanes, Manner, Offer, SimulatedAgents};

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
    /// Extended resources that it simply has, by name: how many.
    pub devices: BTreeMap<String, u32>,
}

impl NodeObject {
    /// A node with much CPU, and nothing that keeps pods away.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            cpu: "64".to_owned(),
            devices: BTreeMap::new(),
        }
    }

    /// Creates the Node, and its GpuNode with this status as its agent does before it has a leader to obey.
    pub async fn create(&self, client: &Client, status: GpuNodeStatus) -> anyhow::Result<()> {
        self.create_node(client).await?;
        let registered = agents::register(client, &self.name, &unconnected(status)).await;
        registered.with_context(|| format!("failed to make the GpuNode {}", self.name))
    }

    /// Creates the Node.
    pub async fn create_node(&self, client: &Client) -> anyhow::Result<()> {
        let Self { name, labels, taints, cpu, devices } = self;
        let mut labels = labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
        let mut room = json!({"cpu": cpu, "memory": "512Gi", "pods": "250"});
        for (device, count) in devices {
            room[device] = json!(count.to_string());
        }
        let node = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints},
            "status": {"capacity": room, "allocatable": room},
        });
        let nodes = Api::<Node>::all(client.clone());
        let made = nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await;
        made.map(drop).with_context(|| format!("failed to make the node {name}"))
    }
}

/// Not ready: nobody is obeyed.
fn unconnected(mut status: GpuNodeStatus) -> GpuNodeStatus {
    for condition in &mut status.conditions {
        condition.status = ConditionStatus::False;
        "NotConnected".clone_into(&mut condition.reason);
    }
    status
}
