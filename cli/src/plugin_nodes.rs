//! The nodes that NVIDIA's device plugin serves, and what pods hold of them: by the code that the webhook and the extender decide
//! with.

use kerf_core::static_node::{Devices, StaticNode, sum};
use kerf_runtime::machine::Machine;
use kerf_runtime::plugin_pod::PluginPod;
use kube::Client;
use kube::api::{Api, ListParams};
use std::collections::BTreeMap;

/// A node, and the pods on it that have not ended.
#[derive(Debug)]
pub struct PluginNode {
    /// What the plugin offers.
    pub node: StaticNode,
    /// Who may hold something of it.
    pub pods: Vec<PluginPod>,
}

impl PluginNode {
    /// What the pods hold.
    #[must_use]
    pub fn taken(&self) -> Devices {
        sum(&self.pods.iter().map(PluginPod::devices).collect::<Vec<_>>())
    }
}

/// Those among these nodes, by name. The cluster's pods are asked for only where there are some.
///
/// # Errors
/// When the API server does not tell the pods.
pub async fn read(
    client: &Client,
    machines: impl Iterator<Item = &Machine>,
) -> kube::Result<BTreeMap<String, PluginNode>> {
    let served = machines.filter_map(|machine| Some((machine.name().to_string(), served(machine)?)));
    let served: BTreeMap<String, StaticNode> = served.collect();
    if served.is_empty() {
        return Ok(BTreeMap::new());
    }
    let pods = Api::<PluginPod>::all(client.clone()).list(&ListParams::default()).await?.items;
    Ok(with_pods(served, &pods))
}

/// What the plugin offers on a node; `None` where it offers nothing.
#[must_use]
pub fn served(machine: &Machine) -> Option<StaticNode> {
    machine.static_node().filter(|node| node.devices.values().any(|count| *count > 0))
}

/// The nodes with those of the pods that are on them.
#[must_use]
pub fn with_pods(nodes: BTreeMap<String, StaticNode>, pods: &[PluginPod]) -> BTreeMap<String, PluginNode> {
    let with_pods = |(name, node): (String, StaticNode)| {
        let pods = pods.iter().filter(|pod| pod.is_on(&name)).cloned().collect();
        (name, PluginNode { node, pods })
    };
    nodes.into_iter().map(with_pods).collect()
}
