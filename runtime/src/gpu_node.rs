//! The GpuNode resource as the API server holds it.
//!
//! Spec and status are kept as raw JSON, because one object that this version cannot parse must not stop a watch. Their
//! schema is the CRD in `deploy/`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, UnreadableStatus};
use kerf_core::keys;
use kerf_core::ledger::NodeState;
use kerf_core::names::NodeName;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A GpuNode: cluster-scoped, named as its Node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuNode {
    /// The API version, always `kerf.dev/v1alpha1`.
    #[serde(default = "api_version")]
    pub api_version: String,
    /// The kind of the object, always `GpuNode`.
    #[serde(default = "kind")]
    pub kind: String,
    /// Its name is that of the Node.
    pub metadata: ObjectMeta,
    /// The node's policy, by an admin or the extender's leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
    /// The state that the node's agent reports; `None` before its first report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
}

fn api_version() -> String {
    keys::API_VERSION.to_owned()
}

fn kind() -> String {
    <GpuNode as k8s_openapi::Resource>::KIND.to_owned()
}

impl GpuNode {
    /// A GpuNode for the node of this name, with an empty spec.
    #[must_use]
    pub fn new(name: &NodeName) -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: ObjectMeta { name: Some(name.to_string()), ..ObjectMeta::default() },
            spec: Some(serde_json::json!(GpuNodeSpec::default())),
            status: None,
        }
    }

    /// The name of the Node that it describes.
    #[must_use]
    pub fn name(&self) -> NodeName {
        NodeName::new(self.metadata.name.clone().unwrap_or_default())
    }

    /// Parses the spec. An absent spec is an empty one.
    pub fn read_spec(&self) -> Result<GpuNodeSpec, serde_json::Error> {
        self.spec.clone().map_or_else(|| Ok(GpuNodeSpec::default()), serde_json::from_value)
    }

    /// The node's desired state: the policy of the spec, and the slices that the agent reports.
    pub fn read_desired(&self) -> Result<GpuNodeSpec, serde_json::Error> {
        let policy = self.read_spec()?.policy;
        // Other readers report a status that does not parse, so here it only counts as empty.
        let status = self.read_status().ok().flatten().unwrap_or_default();
        Ok(NodeState { status, policy, closed: None }.desired())
    }

    /// Parses the status; `None` while the agent has not written one.
    pub fn read_status(&self) -> Result<Option<GpuNodeStatus>, UnreadableStatus> {
        self.status.clone().map(GpuNodeStatus::parse).transpose()
    }
}

// kube's derive takes the group as a literal or from another type only, and only core spells keys. kube implements its
// own `Resource` for every type with these two traits.
impl k8s_openapi::Resource for GpuNode {
    const API_VERSION: &'static str = keys::API_VERSION;
    const GROUP: &'static str = keys::GROUP;
    const KIND: &'static str = "GpuNode";
    const VERSION: &'static str = keys::VERSION;
    const URL_PATH_SEGMENT: &'static str = "gpunodes";
    type Scope = k8s_openapi::ClusterResourceScope;
}

impl k8s_openapi::Metadata for GpuNode {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn desired_slices_are_those_that_the_agent_reports() {
        let slice = |id: &str| json!({"id": id, "gpu": "GPU-0", "shape": {"kind": "whole", "sizeGb": 80}});
        let mut reported = slice("s2");
        reported["state"] = json!("Idle");
        reported["memoryMib"] = json!(81920);
        let mut node = GpuNode::new(&NodeName::new("n1"));
        node.spec = Some(json!({"slices": [slice("s1")], "policy": {"removeRejectedPods": true}}));
        let ids = |node: &GpuNode| {
            let desired = node.read_desired().unwrap();
            assert!(desired.policy.remove_rejected_pods);
            desired.slices.iter().map(|slice| slice.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids(&node), [""; 0], "what the first version's extender wrote does not count");
        node.status = Some(json!({"slices": [reported]}));
        assert_eq!(ids(&node), ["s2"]);
    }

    #[test]
    fn kube_finds_the_resource_that_the_crd_defines() {
        let crd: Value =
            serde_saphyr::from_str(include_str!("../../deploy/base/gpunodes.kerf.dev.yaml")).unwrap();
        let (names, version) = (&crd["spec"]["names"], &crd["spec"]["versions"][0]["name"]);
        let path = format!("/apis/{}/{}/{}", keys::GROUP, keys::VERSION, names["plural"].as_str().unwrap());
        assert_eq!(<GpuNode as kube::Resource>::url_path(&(), None), path);
        assert_eq!(keys::API_VERSION, format!("{}/{}", keys::GROUP, keys::VERSION));
        let node = serde_json::to_value(GpuNode::new(&NodeName::new("n1"))).unwrap();
        assert_eq!(node["kind"], names["kind"]);
        assert_eq!((&crd["spec"]["group"], version), (&keys::GROUP.into(), &keys::VERSION.into()));
    }
}
