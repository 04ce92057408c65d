//! A stand-in for NVIDIA's device plugin with its config-manager, for many nodes at once. Like these programs it reads
//! a node's configuration from the `ConfigMap` by the node's label, and shows the result in the node's allocatable. It
//! simulates only what layouts rely on.

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

const LABEL: &str = "nvidia.com/device-plugin.config";

/// A running stand-in, which ends when this value is dropped.
pub struct Plugin {
    /// Whether it fails on every configuration that is not the default.
    pub fails: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Plugin {
    pub fn start(client: Client) -> Self {
        let fails = Arc::new(AtomicBool::new(false));
        let reported = fails.clone();
        let task = tokio::spawn(async move {
            loop {
                // An error needs no handling, because the next pass repeats what failed.
                let _ = serve(&client, reported.load(Ordering::Relaxed)).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Self { fails, task }
    }
}

pub fn cluster_policies(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("nvidia.com", "v1", "ClusterPolicy");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "clusterpolicies"))
}

async fn serve(client: &Client, fails: bool) -> anyhow::Result<()> {
    let keys = keys(client).await?;
    let nodes = Api::<Node>::all(client.clone());
    for node in nodes.list(&ListParams::default().labels("nvidia.com/gpu.count")).await?.items {
        let labels = node.metadata.labels.unwrap_or_default();
        let gpus: u64 = labels["nvidia.com/gpu.count"].parse()?;
        let label = labels.get(LABEL).filter(|label| !label.is_empty());
        let count = match label {
            Some(_) if fails => 0,
            // Without a configured ConfigMap the plugin has no config-manager, and the label has no effect. A missing
            // key leads to the default.
            Some(key) if !keys.is_empty() => gpus * keys.get(key).map_or(Ok(1), |text| replicas(text))?,
            Some(_) | None => gpus,
        };
        let shown = node.status.unwrap_or_default().allocatable.unwrap_or_default();
        if shown.get("nvidia.com/gpu").is_none_or(|shown| shown.0 != count.to_string()) {
            let resources = json!({"nvidia.com/gpu": count.to_string()});
            let patch = json!({"status": {"capacity": resources, "allocatable": resources}});
            let name = node.metadata.name.unwrap_or_default();
            nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
    }
    Ok(())
}

/// The content of the `ConfigMap` that GPU Operator gives to the plugin.
async fn keys(client: &Client) -> anyhow::Result<BTreeMap<String, String>> {
    let policy = cluster_policies(client).get("cluster-policy").await?;
    let Some(name) = policy.data["spec"]["devicePlugin"]["config"]["name"].as_str() else {
        return Ok(BTreeMap::new());
    };
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "gpu-operator");
    Ok(maps.get(name).await?.data.unwrap_or_default())
}

/// How many devices a configuration makes of a GPU.
fn replicas(text: &str) -> anyhow::Result<u64> {
    let config: Value = serde_saphyr::from_str(text)?;
    anyhow::ensure!(config["version"] == "v1", "unknown version: {}", config["version"]);
    Ok(["timeSlicing", "mps"]
        .iter()
        .find_map(|sharing| config["sharing"][sharing]["resources"][0]["replicas"].as_u64())
        .unwrap_or(1))
}
