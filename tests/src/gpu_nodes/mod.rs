//! GPU nodes that exist only as objects, without kubelet and agent. [`SimulatedAgents`] replace the agents.

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

/// The contents of a Node object.
#[derive(Debug, Clone)]
pub struct NodeObject {
    pub name: String,
    /// Labels besides that of its name.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Its CPU, as a quantity.
    pub cpu: String,
    /// Counts of extended resources, by name.
    pub devices: BTreeMap<String, u32>,
}

impl NodeObject {
    /// A node with much CPU and no taints.
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

    /// Creates the Node, and its GpuNode with this status, as its agent does before it is connected to a
    /// leader.
    pub async fn create(&self, client: &Client, status: GpuNodeStatus) -> anyhow::Result<()> {
        self.create_node(client).await?;
        let registered = agents::register(client, &self.name, &unconnected(status)).await;
        registered.with_context(|| format!("failed to make the GpuNode {}", self.name))
    }

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

/// Marks the agent as not ready, because it is not connected to a leader.
fn unconnected(mut status: GpuNodeStatus) -> GpuNodeStatus {
    for condition in &mut status.conditions {
        condition.status = ConditionStatus::False;
        "NotConnected".clone_into(&mut condition.reason);
    }
    status
}
