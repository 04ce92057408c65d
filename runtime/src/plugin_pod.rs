//! A Pod as one that may hold devices of NVIDIA's device plugin, whoever scheduled it. Nothing else of a Pod is read or kept.

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
use kerf_core::resource::ResourceName;
use kerf_core::static_node::{Devices, PluginName};
use kube::Resource;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The parts of a Pod that are read.
#[derive(Debug, Clone, Default, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub struct PluginPod {
    /// Its metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Where it is, and what it asks for.
    #[serde(default)]
    pub spec: PluginPodSpec,
    /// Whether it has ended.
    #[serde(default)]
    pub status: PluginPodStatus,
}

/// The part of a Pod's spec that matters here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginPodSpec {
    /// The node that it is bound to.
    #[serde(default)]
    pub node_name: Option<String>,
    /// Its init containers.
    #[serde(default)]
    pub init_containers: Vec<ContainerView>,
    /// Its containers.
    #[serde(default)]
    pub containers: Vec<ContainerView>,
}

/// The part of a Pod's status that matters here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PluginPodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(default)]
    pub phase: Option<String>,
}

/// The part of a container that matters here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// `Always` for an init container that is a sidecar.
    #[serde(default)]
    pub restart_policy: Option<String>,
    /// What it asks for.
    #[serde(default)]
    pub resources: Option<ResourcesView>,
}

/// The part of a container's resources that matters here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ResourcesView {
    /// Its requests: the API server makes requests of limits.
    #[serde(default)]
    pub requests: Option<BTreeMap<String, Quantity>>,
}

impl PluginPodStatus {
    /// All its containers have ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.phase.as_deref(), Some("Succeeded" | "Failed"))
    }
}

impl PluginPod {
    /// Its namespace and name.
    #[must_use]
    pub fn key(&self) -> PodKey {
        let ObjectMeta { namespace, name, .. } = &self.metadata;
        PodKey::new(namespace.clone().unwrap_or_default(), name.clone().unwrap_or_default())
    }

    /// Whether it is bound to this node and has not ended.
    #[must_use]
    pub fn is_on(&self, node: &str) -> bool {
        self.spec.node_name.as_deref() == Some(node) && !self.status.has_ended()
    }

    /// The devices that it holds over its whole life.
    #[must_use]
    pub fn devices(&self) -> Devices {
        devices(&self.spec.init_containers, &self.spec.containers)
    }

    /// Whether a change of its node's GPUs would take something from it: a device of the plugin's that a container asks for, for a
    /// while or for its whole life, or a slice that an agent of kerf's made.
    #[must_use]
    pub fn holds_gpus(&self) -> bool {
        self.asks() || self.has_slices()
    }

    fn asks(&self) -> bool {
        let containers = self.spec.containers.iter().chain(&self.spec.init_containers);
        let mut requests = containers.flat_map(ContainerView::requests);
        requests.any(|(name, count)| is_plugin_resource(name) && count.0 != "0")
    }

    /// Whether it has slices that an agent of kerf's made.
    #[must_use]
    pub fn has_slices(&self) -> bool {
        self.metadata.annotations.as_ref().is_some_and(has_slices)
    }
}

/// The devices of NVIDIA's device plugin that a pod with these init containers and containers holds over its whole life.
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

/// Whether a pod with these init containers and containers asks for nothing that goes by a name of NVIDIA's or by a neutral one. Such
/// a name with the amount 0 is nothing, and yet enough for kube-scheduler to ask an extender about the pod
/// (`pkg/scheduler/extender.go`, `hasManagedResources`).
#[must_use]
pub fn asks_for_nothing(init_containers: &[ContainerView], containers: &[ContainerView]) -> bool {
    let mut requests = init_containers.iter().chain(containers).flat_map(ContainerView::requests);
    let is_managed =
        |name: &str| name.starts_with(nvidia_keys::PREFIX) || name.starts_with(keys::SIZE_PREFIX);
    requests.all(|(name, count)| !is_managed(name) || parse_count(&count.0) == Some(0))
}

/// Whether a pod with these init containers and containers asks by a neutral name, which no node has but those with kerf's agent.
#[must_use]
pub fn asks_by_neutral_name(init_containers: &[ContainerView], containers: &[ContainerView]) -> bool {
    let mut requests = init_containers.iter().chain(containers).flat_map(ContainerView::requests);
    requests.any(|(name, count)| name.starts_with(keys::SIZE_PREFIX) && parse_count(&count.0) != Some(0))
}

/// Whether a pod with these annotations has slices that an agent of kerf's made.
#[must_use]
pub fn has_slices(annotations: &BTreeMap<String, String>) -> bool {
    // What cannot be read may be anything.
    annotations.get(keys::ASSIGNMENT).is_some_and(|text| {
        serde_json::from_str::<AssignmentDocument>(text)
            .map_or(true, |assignment| !assignment.slices.is_empty())
    })
}

impl ContainerView {
    /// What it asks of the node.
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
    fn whoever_asks_for_a_name_of_the_plugins_holds_gpus() {
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
    fn whoever_has_a_slice_of_an_agents_holds_gpus() {
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
    fn a_sidecar_holds_beside_the_containers_and_an_init_container_before_them() {
        let gpu = container("nvidia.com/gpu", "1");
        let mut sidecar = gpu.clone();
        sidecar["restartPolicy"] = json!("Always");
        for (init, held) in [(gpu.clone(), 1), (sidecar, 2), (container("nvidia.com/gpu", "3"), 3)] {
            let pod = pod(&json!({"initContainers": [init], "containers": [gpu]}));
            assert_eq!(pod.devices(), [(PluginName::Gpu, held)].into(), "{init}");
        }
    }

    #[test]
    fn a_neutral_name_asks_for_something_and_an_amount_of_0_for_nothing() {
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
            let told = asks_for_nothing(&pod.spec.init_containers, &pod.spec.containers);
            assert_eq!(told, nothing, "{name}: {count}");
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
