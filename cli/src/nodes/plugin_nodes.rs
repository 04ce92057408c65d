//! The nodes that NVIDIA's device plugin serves, by what their Node and the pods on it say. Pure.

use crate::gpu::columns::Columns;
use k8s_openapi::api::core::v1::{Container, Pod};
use kerf_core::kind::Kind;
use kerf_core::static_node::{PluginName, StaticNode};
use kerf_core::units::SizeGb;
use kerf_runtime::machine::Machine;
use serde::Serialize;
use std::collections::BTreeSet;

/// One resource of such a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offered {
    /// The node.
    pub node: String,
    /// The GPUs' model by its short name; `None` where the node's labels do not say it.
    pub model: Option<String>,
    /// The resource.
    pub resource: String,
    /// What a device of it is for kerf; `None` where kerf gives it to nobody.
    pub kind: Option<Kind>,
    /// The nominal size of one; `None` where nobody knows it, so that it serves only who asks by name.
    pub size_gb: Option<SizeGb>,
    /// How many devices there are of it.
    pub devices: u64,
    /// How many of them pods have.
    pub used: u64,
    /// The pods.
    pub pods: Vec<String>,
}

/// What the plugin offers on a node, by the code that the webhook and the extender decide with; `None` where it offers nothing.
pub fn served(machine: &Machine) -> Option<StaticNode> {
    machine.static_node().filter(|node| node.devices.values().any(|count| *count > 0))
}

/// What a node offers, and who has it.
pub fn offered(name: &str, node: &StaticNode, pods: &[Pod]) -> Vec<Offered> {
    let here: Vec<&Pod> = pods.iter().filter(|pod| is_on(pod, name)).collect();
    let devices = node.devices.iter().filter(|(_, count)| **count > 0);
    let of = |(plugin_name, devices): (&PluginName, &u32)| {
        let resource = plugin_name.to_string();
        let users = here.iter().map(|pod| (pod, asks(pod, &resource))).filter(|(_, count)| *count > 0);
        let users: Vec<(String, u64)> = users.map(|(pod, count)| (key(pod), count)).collect();
        let offer = node.offer(*plugin_name);
        Offered {
            node: name.to_owned(),
            model: Some(node.model.clone()).filter(|model| !model.is_empty()),
            resource,
            kind: offer.map(|offer| offer.kind),
            size_gb: offer.and_then(|offer| offer.size),
            devices: u64::from(*devices),
            used: users.iter().map(|(_, count)| count).sum(),
            pods: users.into_iter().map(|(pod, _)| pod).collect(),
        }
    };
    devices.map(of).collect()
}

fn key(pod: &Pod) -> String {
    let metadata = &pod.metadata;
    format!(
        "{}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    )
}

/// Whether a pod is there and has not ended.
fn is_on(pod: &Pod, node: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
        && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// How many devices a pod has of a resource: those of its containers together, or those of its hungriest init container.
fn asks(pod: &Pod, resource: &str) -> u64 {
    let of = |container: &Container| -> u64 {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.and_then(|limits| limits.get(resource)?.0.parse().ok()).unwrap_or(0)
    };
    let Some(spec) = &pod.spec else { return 0 };
    let init = spec.init_containers.iter().flatten().map(of).max().unwrap_or(0);
    spec.containers.iter().map(of).sum::<u64>().max(init)
}

/// As a table.
pub fn table(offered: &[Offered]) -> String {
    let mut columns = Columns::new(["NODE", "MODEL", "RESOURCE", "KIND", "SIZE", "USED", "PODS"]);
    for it in offered {
        let pods: BTreeSet<&str> = it.pods.iter().map(String::as_str).collect();
        let pods = Some(pods).filter(|pods| !pods.is_empty());
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        columns.row([
            it.node.clone(),
            or_dash(it.model.clone()),
            it.resource.clone(),
            or_dash(it.kind.map(|kind| kind.to_string())),
            or_dash(it.size_gb.map(|size| size.to_string())),
            format!("{}/{}", it.used, it.devices),
            or_dash(pods.map(|pods| pods.into_iter().collect::<Vec<_>>().join(", "))),
        ]);
    }
    columns.write("")
}
