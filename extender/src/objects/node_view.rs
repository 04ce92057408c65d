//! A Node as the leader watches it: its layout, its capacity for pods, and whether it accepts any. Nothing else of a
//! Node is read or kept.

use crate::objects::metadata;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeRuntimeHandler};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::keys;
use kerf_core::names::NodeName;
use kerf_core::nvidia_keys::is_plugin_resource;
use kerf_core::plugin_layout::{Condition, Holders, SeenNode};
use kerf_runtime::machine::{Machine, MachineInfo, MachineSpec, MachineStatus};
use kube::Resource;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The parts of a Node that are read.
#[derive(Debug, Clone, Default, Deserialize, Resource)]
#[resource(inherit = Node)]
pub struct NodeView {
    #[serde(default, deserialize_with = "metadata::read")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<MachineSpec>,
    #[serde(default)]
    status: Option<StatusView>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusView {
    #[serde(default)]
    capacity: Option<BTreeMap<String, Quantity>>,
    #[serde(default)]
    allocatable: Option<BTreeMap<String, Quantity>>,
    #[serde(default)]
    conditions: Option<Vec<NodeCondition>>,
    #[serde(default)]
    runtime_handlers: Option<Vec<NodeRuntimeHandler>>,
    #[serde(default)]
    node_info: Option<InfoView>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InfoView {
    #[serde(rename = "bootID", default)]
    boot: String,
    #[serde(default)]
    kernel_version: String,
}

impl NodeView {
    /// The node's resources for pods, and its abilities.
    #[must_use]
    pub fn into_machine(self) -> Machine {
        let status = self.status.map(|status| {
            let StatusView { capacity, allocatable, runtime_handlers, node_info, .. } = status;
            let node_info = node_info.map(|info| MachineInfo { kernel_version: info.kernel_version });
            MachineStatus { capacity, allocatable, runtime_handlers, node_info }
        });
        Machine { metadata: self.metadata, spec: self.spec, status }
    }

    /// The node's name, what core decides on, and its resource version.
    #[must_use]
    pub fn into_seen(self) -> (NodeName, SeenNode, String) {
        let Self { metadata, status, .. } = self;
        let StatusView { allocatable, conditions, node_info, .. } = status.unwrap_or_default();
        let devices =
            allocatable.unwrap_or_default().into_iter().filter(|(name, _)| is_plugin_resource(name));
        let mut conditions = conditions.unwrap_or_default().into_iter();
        let condition = conditions.find(|condition| condition.type_ == keys::LAYOUT_CONDITION);
        let seen = SeenNode {
            labels: metadata.labels.unwrap_or_default(),
            allocatable: devices.filter_map(|(name, count)| Some((name, count.0.parse().ok()?))).collect(),
            boot: node_info.unwrap_or_default().boot,
            record: metadata.annotations.unwrap_or_default().remove(keys::PLUGIN_LAYOUT),
            condition: condition.map(|condition| Condition {
                status: condition.status,
                reason: condition.reason.unwrap_or_default(),
                message: condition.message.unwrap_or_default(),
            }),
            holders: Holders::Unknown,
        };
        let name = NodeName::new(metadata.name.unwrap_or_default());
        (name, seen, metadata.resource_version.unwrap_or_default())
    }
}

/// Whether layouts may concern the node. Most nodes of a cluster have no GPU, so they are not kept.
pub(crate) fn is_of_interest(node: &SeenNode) -> bool {
    node.record.is_some()
        || node.condition.is_some()
        || !node.allocatable.is_empty()
        || node.labels.keys().any(|key| key.starts_with("nvidia.com/") || key == keys::LAYOUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_needed_parts_of_a_node_are_read() {
        let node: NodeView = serde_json::from_value(json!({
            "metadata": {"name": "n", "resourceVersion": "7", "labels": {"nvidia.com/gpu.count": "2"},
                         "annotations": {"kerf.dev/plugin-layout": "{}"}},
            "status": {
                "allocatable": {"cpu": "4", "nvidia.com/gpu": "8", "nvidia.com/gpu-10gb": "1"},
                "conditions": [{"type": "Ready", "status": "True"},
                               {"type": "kerf.dev/Layout", "status": "True", "reason": "InForce", "message": "m"}],
                "nodeInfo": {"bootID": "b"},
            },
        }))
        .unwrap();
        let (name, seen, version) = node.into_seen();
        assert_eq!((name.as_str(), version.as_str(), seen.boot.as_str()), ("n", "7", "b"));
        assert_eq!(seen.allocatable, [("nvidia.com/gpu".to_owned(), 8)].into());
        assert_eq!(seen.condition.as_ref().map(|c| c.reason.as_str()), Some("InForce"));
        assert!(is_of_interest(&seen));
        let plain: NodeView =
            serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"a": "b"}}})).unwrap();
        assert!(!is_of_interest(&plain.into_seen().1));
    }

    #[test]
    fn any_trace_of_gpus_or_of_a_layout_makes_a_node_of_interest() {
        for node in [
            json!({"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}),
            json!({"metadata": {"labels": {"kerf.dev/layout": "small"}}}),
            json!({"metadata": {"annotations": {"kerf.dev/plugin-layout": "{}"}}}),
            json!({"metadata": {}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}),
            json!({"metadata": {}, "status": {"conditions": [{"type": "kerf.dev/Layout", "status": "True"}]}}),
        ] {
            let view: NodeView = serde_json::from_value(node.clone()).unwrap();
            assert!(is_of_interest(&view.into_seen().1), "{node}");
        }
    }
}
