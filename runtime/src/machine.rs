//! A Node as kerf's programs watch it: metadata, taints, resources, runtime handlers and kernel. No other field is read
//! or kept.

use k8s_openapi::api::core::v1::{Node, NodeRuntimeHandler, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::keys;
use kerf_core::names::NodeName;
use kerf_core::static_node::StaticNode;
use kube::Resource;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The taints of a Node that is cordoned or lost.
const SHUT_TAINTS: [&str; 3] =
    ["node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The parts of a Node that a watch reads.
#[derive(Debug, Clone, Default, Deserialize, Resource)]
#[resource(inherit = Node)]
pub struct Machine {
    /// Name, labels and annotations of the Node.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Whether pods may come to it.
    #[serde(default)]
    pub spec: Option<MachineSpec>,
    /// Its resources, runtime handlers and kernel.
    #[serde(default)]
    pub status: Option<MachineStatus>,
}

/// The fields of a Node's spec that kerf reads.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct MachineSpec {
    /// Whether an admin has cordoned the Node.
    #[serde(default)]
    pub unschedulable: Option<bool>,
    /// The taints, which keep pods without tolerations away.
    #[serde(default)]
    pub taints: Option<Vec<Taint>>,
}

/// The fields of a Node's status that kerf reads.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// All resources of the Node, unhealthy devices included.
    #[serde(default)]
    pub capacity: Option<BTreeMap<String, Quantity>>,
    /// The resources that pods may request.
    #[serde(default)]
    pub allocatable: Option<BTreeMap<String, Quantity>>,
    /// The container runtime's features, by handler.
    #[serde(default)]
    pub runtime_handlers: Option<Vec<NodeRuntimeHandler>>,
    /// Facts about the Node's system.
    #[serde(default)]
    pub node_info: Option<MachineInfo>,
}

/// The fields of a Node's system information that kerf reads.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineInfo {
    /// The kernel's release, as `uname -r` prints it.
    #[serde(default)]
    pub kernel_version: String,
}

impl Machine {
    /// The name of the Node.
    #[must_use]
    pub fn name(&self) -> NodeName {
        NodeName::new(self.metadata.name.clone().unwrap_or_default())
    }

    /// The resources that pods may request; `None` before the kubelet has reported.
    #[must_use]
    pub fn allocatable(&self) -> Option<&BTreeMap<String, Quantity>> {
        self.status.as_ref()?.allocatable.as_ref()
    }

    /// The taints of the Node; empty if it has none.
    #[must_use]
    pub fn taints(&self) -> &[Taint] {
        self.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
    }

    /// Whether the Node is cordoned or lost. kerf then counts on no pod going there, although pods may tolerate it.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        let is_lost = |taint: &Taint| SHUT_TAINTS.contains(&taint.key.as_str()) && keeps_away(taint);
        self.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true))
            || self.taints().iter().any(is_lost)
    }

    /// Whether the Node can run pods in user namespaces. There a root process cannot command the MPS daemon of its GPU.
    #[must_use]
    pub fn has_user_namespaces(&self) -> bool {
        let status = self.status.as_ref();
        let handlers = status.and_then(|status| status.runtime_handlers.as_deref());
        let kernel = status.and_then(|status| Some(status.node_info.as_ref()?.kernel_version.as_str()));
        user_namespaces(handlers, kernel).is_ok()
    }

    /// The devices that it offers as a static node; `None` if its labels and resources say that it is none.
    #[must_use]
    pub fn static_node(&self) -> Option<StaticNode> {
        let status = self.status.as_ref()?;
        static_node(&self.metadata, status.capacity.as_ref(), status.allocatable.as_ref())
    }
}

/// Why a Node cannot run pods in user namespaces.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoUserNamespaces {
    /// The kubelet reports them for no handler: its feature gate is off, or the runtime has none.
    #[error(
        "its kubelet reports none for the container runtime's handler {0:?} (on from Kubernetes 1.33, containerd 2.0 and CRI-O 1.25 on)"
    )]
    Runtime(String),
    /// The kernel lacks idmapped mounts of tmpfs, which Secrets and service account tokens need.
    #[error("its kernel {0:?} is older than 6.3")]
    Kernel(String),
}

/// The runtime handlers that run pods with GPUs: the default one, and NVIDIA's if it is set up.
const HANDLERS: [&str; 2] = ["", "nvidia"];

/// The first kernel with idmapped mounts of tmpfs (Kubernetes, "User Namespaces").
const KERNEL: (u32, u32) = (6, 3);

/// Whether a Node can run pods in user namespaces, by its `status.runtimeHandlers` and `status.nodeInfo.kernelVersion`.
///
/// No other field is needed: the kubelet reports the feature only if its gate `UserNamespacesSupport` is on, and the
/// API server is never older than the kubelet.
///
/// # Errors
/// Names the part that lacks support: runtime or kernel.
pub fn user_namespaces(
    handlers: Option<&[NodeRuntimeHandler]>,
    kernel: Option<&str>,
) -> Result<(), NoUserNamespaces> {
    let name = |handler: &NodeRuntimeHandler| handler.name.clone().unwrap_or_default();
    let has_them = |handler: &NodeRuntimeHandler| {
        handler.features.as_ref().is_some_and(|features| features.user_namespaces == Some(true))
    };
    let handlers = handlers.unwrap_or_default();
    let mut used = handlers.iter().filter(|handler| HANDLERS.contains(&name(handler).as_str()));
    if let Some(without) = used.clone().find(|handler| !has_them(handler)) {
        return Err(NoUserNamespaces::Runtime(name(without)));
    }
    if !used.any(|handler| name(handler).is_empty()) {
        return Err(NoUserNamespaces::Runtime(String::new()));
    }
    let kernel = kernel.unwrap_or_default();
    let mut numbers = kernel.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < KERNEL { Err(NoUserNamespaces::Kernel(kernel.to_owned())) } else { Ok(()) }
}

/// Whether the taint excludes pods without a toleration. `PreferNoSchedule` does not: it only lowers a node's score.
#[must_use]
pub fn keeps_away(taint: &Taint) -> bool {
    taint.effect != "PreferNoSchedule"
}

/// The same as [`Machine::static_node`] for a Node that was read whole.
#[must_use]
pub fn static_node_of(node: &Node) -> Option<StaticNode> {
    let status = node.status.as_ref()?;
    static_node(&node.metadata, status.capacity.as_ref(), status.allocatable.as_ref())
}

fn static_node(
    metadata: &ObjectMeta,
    capacity: Option<&BTreeMap<String, Quantity>>,
    allocatable: Option<&BTreeMap<String, Quantity>>,
) -> Option<StaticNode> {
    let none = BTreeMap::new();
    let labels = metadata.labels.as_ref().unwrap_or(&none);
    let record = metadata.annotations.as_ref().and_then(|all| all.get(keys::PLUGIN_LAYOUT));
    StaticNode::read(labels, record.map(String::as_str), amounts(capacity), amounts(allocatable))
}

fn amounts(all: Option<&BTreeMap<String, Quantity>>) -> impl Iterator<Item = (&str, &str)> {
    all.into_iter().flatten().map(|(name, amount)| (name.as_str(), amount.0.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_static_nodes_offers_are_read_from_its_resources_and_labels() {
        let node = |labels: serde_json::Value| -> Machine {
            let status = json!({
                "capacity": {"cpu": "8", "nvidia.com/gpu": "4"},
                "allocatable": {"cpu": "7500m", "nvidia.com/gpu": "3"},
                "images": [{"names": ["a"]}],
            });
            serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}, "status": status}))
                .unwrap()
        };
        let offers = node(json!(null)).static_node().unwrap().offers;
        assert_eq!(offers.iter().map(|offer| offer.count).collect::<Vec<_>>(), [3]);
        assert_eq!(node(json!({"kerf.dev/managed": "true"})).static_node(), None);
        assert_eq!(node(json!(null)).allocatable().unwrap()["cpu"].0, "7500m");
        assert_eq!(Machine::default().static_node(), None);
    }

    #[test]
    fn user_namespaces_need_support_of_the_runtime_and_the_kernel() {
        let handler = |name: &str, has: bool| json!({"name": name, "features": {"userNamespaces": has}});
        for (handlers, kernel, has_them) in [
            (json!([handler("", true)]), "6.8.0-45-generic", true),
            (json!([handler("", true)]), "6.3", true),
            (json!([handler("", true), handler("nvidia", true), handler("kata", false)]), "6.12.4", true),
            (json!([handler("", true), handler("nvidia", false)]), "6.8.0", false),
            (json!([handler("", false)]), "6.8.0", false),
            (json!([{"name": ""}, handler("nvidia", true)]), "6.8.0", false),
            (json!([handler("nvidia", true)]), "6.8.0", false),
            (json!([handler("", true)]), "6.2.16", false),
            (json!([handler("", true)]), "5.15.0-1", false),
            (json!([handler("", true)]), "", false),
            (json!(null), "6.8.0", false),
        ] {
            let status = json!({"runtimeHandlers": handlers, "nodeInfo": {"kernelVersion": kernel}});
            let node: Machine =
                serde_json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap();
            assert_eq!(node.has_user_namespaces(), has_them, "{status}");
        }
    }

    #[test]
    fn a_node_that_is_cordoned_or_lost_is_shut() {
        let taint = |key: &str, effect: &str| json!({"taints": [{"key": key, "effect": effect}]});
        for (spec, is_shut) in [
            (json!(null), false),
            (json!({"podCIDR": "10.0.0.0/24", "taints": null}), false),
            (json!({"unschedulable": true}), true),
            (taint("node.kubernetes.io/unreachable", "NoExecute"), true),
            (taint("node.kubernetes.io/not-ready", "NoSchedule"), true),
            (taint("node.kubernetes.io/unschedulable", "NoSchedule"), true),
            (taint("node.kubernetes.io/not-ready", "PreferNoSchedule"), false),
            (taint("node.kubernetes.io/memory-pressure", "NoSchedule"), false),
            (taint("nvidia.com/gpu", "NoSchedule"), false),
        ] {
            let node = json!({"metadata": {"name": "n"}, "spec": spec});
            let node: Machine = serde_json::from_value(node).unwrap();
            assert_eq!(node.is_shut(), is_shut, "{spec}");
        }
    }
}
