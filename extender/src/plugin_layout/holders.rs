//! Who holds devices of NVIDIA's plugin on a node: asked of the API server, not of a watch, since a change rests on it.

use super::PATIENCE;
use crate::in_time::{Unanswered, in_time};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::names::{NodeName, PodKey};
use kerf_core::nvidia_keys::is_plugin_resource;
use kube::Resource;
use kube::api::{Api, ListParams};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The parts of a Pod that are read.
#[derive(Debug, Clone, Default, Deserialize, Resource)]
#[resource(inherit = Pod)]
struct HolderView {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecView,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecView {
    #[serde(default)]
    containers: Vec<ContainerView>,
    #[serde(default)]
    init_containers: Vec<ContainerView>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct ContainerView {
    #[serde(default)]
    resources: ResourcesView,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct ResourcesView {
    /// The API server makes requests of limits.
    #[serde(default)]
    requests: BTreeMap<String, Quantity>,
}

impl HolderView {
    fn holds(&self) -> bool {
        let containers = self.spec.containers.iter().chain(&self.spec.init_containers);
        let mut requests = containers.flat_map(|container| &container.resources.requests);
        requests.any(|(name, count)| is_plugin_resource(name) && count.0 != "0")
    }
}

/// Pods that are bound to the node, have not ended, and ask for a device of the plugin's, whoever scheduled them.
pub(super) async fn of(client: &kube::Client, node: &NodeName) -> Result<Vec<PodKey>, Unanswered> {
    let here = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let pods = Api::<HolderView>::all(client.clone());
    let found = in_time(PATIENCE, pods.list(&ListParams::default().fields(&here))).await?;
    let holding = found.items.into_iter().filter(HolderView::holds);
    let key = |pod: HolderView| {
        PodKey::new(pod.metadata.namespace.unwrap_or_default(), pod.metadata.name.unwrap_or_default())
    };
    Ok(holding.map(key).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn holds(spec: &Value) -> bool {
        serde_json::from_value::<HolderView>(json!({"metadata": {"name": "p"}, "spec": spec}))
            .unwrap()
            .holds()
    }

    #[test]
    fn whoever_asks_for_a_name_of_the_plugins_holds_a_device() {
        let container =
            |name: &str, count: &str| json!([{"name": "c", "resources": {"requests": {name: count}}}]);
        assert!(holds(&json!({"containers": container("nvidia.com/gpu", "1")})));
        assert!(holds(
            &json!({"containers": [], "initContainers": container("nvidia.com/mig-1g.10gb", "1")})
        ));
        assert!(!holds(&json!({"containers": container("nvidia.com/gpu", "0")})));
        assert!(!holds(&json!({"containers": container("nvidia.com/gpu-10gb", "1")})));
        assert!(!holds(&json!({"containers": [{"name": "c"}]})));
    }
}
