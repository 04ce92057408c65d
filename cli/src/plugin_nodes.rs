//! Static nodes, and the devices that pods hold of them. They are read by the code with which the webhook and the
//! extender decide, so that all agree.

use kerf_core::names::NodeName;
use kerf_core::plugin_layout::SeenClusterPolicy;
use kerf_core::static_node::{Devices, StaticNode, sum};
use kerf_runtime::cluster_policy::{api, heeded, seen};
use kerf_runtime::machine::Machine;
use kerf_runtime::plugin_pod::PluginPod;
use kube::Client;
use kube::api::{Api, ListParams};
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub struct PluginNode {
    pub node: StaticNode,
    pub pods: Vec<PluginPod>,
}

impl PluginNode {
    #[must_use]
    pub fn taken(&self) -> Devices {
        sum(&self.pods.iter().map(PluginPod::devices).collect::<Vec<_>>())
    }
}

/// The static nodes among these, by name. The cluster's pods are listed only if there are static nodes, because that
/// list is long.
///
/// # Errors
/// If the API server does not return the pods.
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

/// GPU Operator's `ClusterPolicy`; `None` without GPU Operator.
///
/// # Errors
/// If the API server does not return it, or it cannot be parsed.
pub async fn cluster_policy(client: &Client) -> anyhow::Result<Option<SeenClusterPolicy>> {
    let policies = match api(client).list(&ListParams::default()).await {
        // A cluster without GPU Operator lacks the resource, which is no error.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
        policies => policies?.items,
    };
    Ok(heeded(policies).as_ref().map(seen).transpose()?)
}

/// Marks the nodes whose MIG devices are being renamed as changing, because the extender binds no pods there. The
/// extender's leader counts from when it first saw the renaming, so a new leader keeps nodes closed for longer than the
/// wall clock suggests here.
pub fn close_renamed(nodes: &mut BTreeMap<String, PluginNode>, policy: &SeenClusterPolicy, now: u64) {
    for (name, PluginNode { node, .. }) in nodes {
        let allocatable = node.devices.iter().map(|(device, count)| (device.to_string(), u64::from(*count)));
        node.is_changing |= policy.is_renaming(&NodeName::new(name), &allocatable.collect(), |renaming| {
            now.saturating_sub(renaming.since)
        });
    }
}

#[must_use]
pub fn served(machine: &Machine) -> Option<StaticNode> {
    machine.static_node().filter(|node| node.devices.values().any(|count| *count > 0))
}

#[must_use]
pub fn with_pods(nodes: BTreeMap<String, StaticNode>, pods: &[PluginPod]) -> BTreeMap<String, PluginNode> {
    let with_pods = |(name, node): (String, StaticNode)| {
        let pods = pods.iter().filter(|pod| pod.is_on(&name)).cloned().collect();
        (name, PluginNode { node, pods })
    };
    nodes.into_iter().map(with_pods).collect()
}
