//! A Pod that may hold devices of NVIDIA's device plugin, whichever scheduler bound it. Only the fields for that are
//! read.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::contract::AssignmentDocument;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::names::PodKey;
use kerf_core::nvidia_keys::{self, is_plugin_resource};
use kerf_core::quantity::parse_count;
use kerf_core::request::{Claim, Role, held};
use kerf_core::resource::{PluginName, ResourceName};
use kerf_core::static_node::Devices;
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
    pub init_containers: Vec<ContainerView>,
    /// The containers, without init containers.
    #[serde(default)]
    pub containers: Vec<ContainerView>,
}

/// The fields of a Pod's status that kerf reads here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PluginPodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(default)]
    pub phase: Option<String>,
}

/// The fields of a container that kerf reads here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// `Always` if an init container is a sidecar.
    #[serde(default)]
    pub restart_policy: Option<String>,
    /// The resources that the container requests.
    #[serde(default)]
    pub resources: Option<ResourcesView>,
}

/// The fields of a container's resources that kerf reads here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ResourcesView {
    /// The requests alone, because the API server copies limits into them.
    #[serde(default)]
    pub requests: Option<BTreeMap<String, Quantity>>,
}

impl PluginPodStatus {
    /// Whether all containers have ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.phase.as_deref(), Some("Succeeded" | "Failed"))
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
        devices(&self.spec.init_containers, &self.spec.containers)
    }

    /// Whether a change of the node's GPUs would take something from the Pod: a device of the plugin, held for a while
    /// or for its whole life, or a slice that kerf's agent made.
    #[must_use]
    pub fn holds_gpus(&self) -> bool {
        self.requests_devices() || self.has_slices()
    }

    fn requests_devices(&self) -> bool {
        let containers = self.spec.containers.iter().chain(&self.spec.init_containers);
        let mut requests = containers.flat_map(ContainerView::requests);
        requests.any(|(name, count)| is_plugin_resource(name) && count.0 != "0")
    }

    /// Whether it has slices that kerf's agent made.
    #[must_use]
    pub fn has_slices(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(has_slices)
    }
}

/// The devices of NVIDIA's device plugin that a pod with these containers holds over its whole life.
#[must_use]
pub fn devices(init_containers: &[ContainerView], containers: &[ContainerView]) -> Devices {
    let init = init_containers.iter().map(|container| {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        (if is_sidecar { Role::Sidecar } else { Role::Init }, container)
    });
    let all = init.chain(containers.iter().map(|container| (Role::App, container)));
    let claims: Vec<Claim> = all.flat_map(|(role, container)| container.claims(role)).collect();
    let mut devices = Devices::new();
    for (claim, held) in claims.iter().zip(held(&claims)).filter(|(_, held)| *held > 0) {
        if let Some(name) = claim.resource.plugin_name() {
            let sum = devices.entry(name).or_default();
            *sum = sum.saturating_add(held);
        }
    }
    devices
}

/// Whether a pod with these containers requests no resource with a name of NVIDIA's or a neutral one. An amount of 0
/// counts as no request, but it is enough for kube-scheduler to ask an extender about the pod
/// (`pkg/scheduler/extender.go`, `hasManagedResources`). Neutral names count, because a pod with one and without a
/// request document would otherwise pass the filter and start without a GPU.
#[must_use]
pub fn asks_for_nothing(init_containers: &[ContainerView], containers: &[ContainerView]) -> bool {
    let mut requests = init_containers.iter().chain(containers).flat_map(ContainerView::requests);
    let is_managed =
        |name: &str| name.starts_with(nvidia_keys::PREFIX) || name.starts_with(keys::SIZE_PREFIX);
    requests.all(|(name, count)| !is_managed(name) || parse_count(&count.0) == Some(0))
}

/// Whether a pod with these containers requests a neutral name, which only managed nodes have.
#[must_use]
pub fn asks_by_neutral_name(init_containers: &[ContainerView], containers: &[ContainerView]) -> bool {
    let mut requests = init_containers.iter().chain(containers).flat_map(ContainerView::requests);
    requests.any(|(name, count)| name.starts_with(keys::SIZE_PREFIX) && parse_count(&count.0) != Some(0))
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

impl ContainerView {
    /// The resource requests of the container, by name.
    pub fn requests(&self) -> impl Iterator<Item = (&String, &Quantity)> {
        self.resources.iter().filter_map(|resources| resources.requests.as_ref()).flatten()
    }

    fn claims(&self, role: Role) -> impl Iterator<Item = Claim> {
        self.requests().filter_map(move |(name, amount)| {
            let name: PluginName = name.parse().ok()?;
            let resource = name.plain().unwrap_or(ResourceName::Plugin(name, Kind::TimeSlicing));
            let count = u32::try_from(parse_count(&amount.0)?).unwrap_or(u32::MAX);
            Some(Claim { role, resource, count })
        })
    }
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
    fn a_sidecars_devices_add_to_the_containers_and_an_init_containers_do_not() {
        let gpu = container("nvidia.com/gpu", "1");
        let mut sidecar = gpu.clone();
        sidecar["restartPolicy"] = json!("Always");
        for (init, held) in [(gpu.clone(), 1), (sidecar, 2), (container("nvidia.com/gpu", "3"), 3)] {
            let pod = pod(&json!({"initContainers": [init], "containers": [gpu]}));
            assert_eq!(pod.devices(), [(PluginName::Gpu, held)].into(), "{init}");
        }
    }

    #[test]
    fn a_neutral_name_is_a_request_and_an_amount_of_0_is_none() {
        for (name, count, nothing) in [
            ("nvidia.com/gpu", "0", true),
            ("nvidia.com/gpu-10gb", "0", true),
            ("cpu", "2", true),
            ("example.com/fpga", "1", true),
            ("nvidia.com/gpu", "1", false),
            ("nvidia.com/gpu-10gb", "1", false),
            ("nvidia.com/gpu", "none", false),
            ("kerf.dev/gpu-10gb", "1", false),
            ("kerf.dev/gpu-13gb", "1", false),
            ("kerf.dev/gpu-10gb", "0", true),
        ] {
            let pod = pod(&json!({"initContainers": [], "containers": [container(name, count)]}));
            let reported = asks_for_nothing(&pod.spec.init_containers, &pod.spec.containers);
            assert_eq!(reported, nothing, "{name}: {count}");
        }
        let init = pod(&json!({"initContainers": [container("nvidia.com/gpu", "1")], "containers": []}));
        assert!(!asks_for_nothing(&init.spec.init_containers, &[]));
    }

    #[test]
    fn a_pod_that_has_ended_is_on_no_node() {
        let mut pod = pod(&json!({"nodeName": "n", "containers": []}));
        assert!(pod.is_on("n") && !pod.is_on("m"));
        pod.status.phase = Some("Failed".to_owned());
        assert!(!pod.is_on("n"));
    }
}
