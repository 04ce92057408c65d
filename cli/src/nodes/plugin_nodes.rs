//! The nodes that NVIDIA's device plugin serves, by what their Node and the pods on it say. Pure.

use crate::gpu::columns::Columns;
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use serde::Serialize;
use std::collections::BTreeSet;

/// The prefixes of the plugin's resource names.
const NAMES: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-"];

/// One resource of such a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offered {
    /// The node.
    pub node: String,
    /// The GPU's product, as GPU feature discovery calls it.
    pub product: Option<String>,
    /// The resource.
    pub resource: String,
    /// How many devices there are of it.
    pub devices: u64,
    /// How many of them pods have.
    pub used: u64,
    /// The pods.
    pub pods: Vec<String>,
}

/// Whether the plugin offers anything on a node.
pub fn is_served(node: &Node) -> bool {
    allocatable(node).next().is_some()
}

fn allocatable(node: &Node) -> impl Iterator<Item = (&String, u64)> {
    let all = node.status.iter().flat_map(|status| status.allocatable.iter().flatten());
    all.filter(|(name, _)| NAMES.iter().any(|prefix| name.starts_with(prefix)))
        .filter_map(|(name, amount)| Some((name, amount.0.parse().ok()?)))
        .filter(|(_, amount)| *amount > 0)
}

/// What a node offers, and who has it.
pub fn offered(node: &Node, pods: &[Pod]) -> Vec<Offered> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let labels = node.metadata.labels.as_ref();
    let product = labels.and_then(|labels| labels.get("nvidia.com/gpu.product")).cloned();
    let here: Vec<&Pod> = pods.iter().filter(|pod| is_on(pod, &name)).collect();
    let of = |(resource, devices): (&String, u64)| {
        let users = here.iter().map(|pod| (pod, asks(pod, resource))).filter(|(_, count)| *count > 0);
        let users: Vec<(String, u64)> = users.map(|(pod, count)| (key(pod), count)).collect();
        Offered {
            node: name.clone(),
            product: product.clone(),
            resource: resource.clone(),
            devices,
            used: users.iter().map(|(_, count)| count).sum(),
            pods: users.into_iter().map(|(pod, _)| pod).collect(),
        }
    };
    allocatable(node).map(of).collect()
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
    let mut columns = Columns::new(["NODE", "PRODUCT", "RESOURCE", "USED", "PODS"]);
    for it in offered {
        let pods: BTreeSet<&str> = it.pods.iter().map(String::as_str).collect();
        columns.row([
            it.node.clone(),
            it.product.clone().unwrap_or_else(|| "-".to_owned()),
            it.resource.clone(),
            format!("{}/{}", it.used, it.devices),
            if pods.is_empty() { "-".to_owned() } else { pods.into_iter().collect::<Vec<_>>().join(", ") },
        ]);
    }
    columns.write("")
}
