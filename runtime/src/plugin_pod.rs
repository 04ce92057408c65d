//! A Pod that may hold devices of NVIDIA's device plugin, whichever scheduler bound it. Only the fields for that are
//! read.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::contract::AssignmentDocument;
use kerf_core::keys;
use kerf_core::names::PodKey;
use kerf_core::nvidia_keys::is_plugin_resource;
use kerf_core::request::{PodRequests, RequestingContainer, has_ended};
use kerf_core::static_node::{Devices, requested_devices};
use kube::Resource;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The fields of a Pod that show which devices it holds.
#[derive(Debug, Clone, Default, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub struct PluginPod {
    /// Name, namespace and annotations of the Pod.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The node, and the resource requests of all containers.
    #[serde(default)]
    pub spec: PluginPodSpec,
    /// The phase, which says whether the Pod has ended.
    #[serde(default)]
    pub status: PluginPodStatus,
}

/// The fields of a Pod's spec that kerf reads here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginPodSpec {
    /// The node to which the Pod is bound.
    #[serde(default)]
    pub node_name: Option<String>,
    /// The init containers, sidecars included.
    #[serde(default)]
    pub init_containers: Vec<RequestingContainer>,
    /// The containers, without init containers.
    #[serde(default)]
    pub containers: Vec<RequestingContainer>,
}

/// The fields of a Pod's status that kerf reads here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PluginPodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(default)]
    pub phase: Option<String>,
}

impl PluginPodSpec {
    /// The requests of all containers.
    #[must_use]
    pub fn requests(&self) -> PodRequests<'_> {
        PodRequests { init_containers: &self.init_containers, containers: &self.containers }
    }
}

impl PluginPodStatus {
    /// Whether all containers have ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.phase.as_deref().is_some_and(has_ended)
    }
}

impl PluginPod {
    /// The namespace and name of the Pod.
    #[must_use]
    pub fn key(&self) -> PodKey {
        let ObjectMeta { namespace, name, .. } = &self.metadata;
        PodKey::new(namespace.clone().unwrap_or_default(), name.clone().unwrap_or_default())
    }

    /// Whether the Pod is bound to this node and has not ended.
    #[must_use]
    pub fn is_on(&self, node: &str) -> bool {
        self.spec.node_name.as_deref() == Some(node) && !self.status.has_ended()
    }

    /// The plugin's devices that the Pod holds over its whole life.
    #[must_use]
    pub fn devices(&self) -> Devices {
        requested_devices(self.spec.requests())
    }

    /// Whether a change of the node's GPUs would take something from the Pod: a device of the plugin, held for a while
    /// or for its whole life, or a slice that kerf's agent made.
    #[must_use]
    pub fn holds_gpus(&self) -> bool {
        self.requests_devices() || self.has_slices()
    }

    fn requests_devices(&self) -> bool {
        self.spec.requests().amounts().any(|(name, count)| is_plugin_resource(name) && count != "0")
    }

    /// Whether it has slices that kerf's agent made.
    #[must_use]
    pub fn has_slices(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(has_slices)
    }
}

/// Whether a pod with these annotations has slices that kerf's agent made.
#[must_use]
pub fn has_slices(annotations: &BTreeMap<String, String>) -> bool {
    // An assignment that does not parse counts as one with slices, because it may have some.
    annotations.get(keys::ASSIGNMENT).is_some_and(|text| {
        serde_json::from_str::<AssignmentDocument>(text)
            .map_or(true, |assignment| !assignment.slices.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: &Value) -> PluginPod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn container(name: &str, count: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {name: count}}})
    }

    #[test]
    fn a_pod_that_requests_a_device_of_the_plugin_holds_gpus() {
        for (list, name, count, holds) in [
            ("containers", "nvidia.com/gpu", "1", true),
            ("initContainers", "nvidia.com/mig-1g.10gb", "1", true),
            ("containers", "nvidia.com/gpu", "0", false),
            ("containers", "nvidia.com/gpu-10gb", "1", false),
        ] {
            assert_eq!(pod(&json!({list: [container(name, count)]})).holds_gpus(), holds, "{name}: {count}");
        }
        assert!(!pod(&json!({"containers": [{"name": "c"}]})).holds_gpus());
    }

    #[test]
    fn a_pod_with_a_slice_of_an_agent_holds_gpus() {
        let slice =
            json!({"container": "c", "id": "s1", "gpu": "GPU-1", "shape": {"kind": "mps", "sizeGb": 4}});
        for (slices, holds) in [(json!([slice]), true), (json!([]), false)] {
            let mut pod = pod(&json!({"containers": [container("nvidia.com/gpu-4gb", "1")]}));
            let assignment = json!({"version": 1, "slices": slices}).to_string();
            pod.metadata.annotations = Some([(keys::ASSIGNMENT.to_owned(), assignment)].into());
            assert_eq!(pod.holds_gpus(), holds, "{slices}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_is_on_no_node() {
        let mut pod = pod(&json!({"nodeName": "n", "containers": []}));
        assert!(pod.is_on("n") && !pod.is_on("m"));
        pod.status.phase = Some("Failed".to_owned());
        assert!(!pod.is_on("n"));
    }
}
