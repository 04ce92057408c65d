//! Writes the ConfigMap with the layouts of static nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

/// Creates or replaces the ConfigMap, and creates its namespace if that is missing.
pub async fn write(
    client: &Client,
    namespace: &str,
    name: &str,
    layouts: &[(&str, &str)],
) -> anyhow::Result<()> {
    let apply = PatchParams::apply("kerf-tests").force();
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    Api::<Namespace>::all(client.clone()).patch(namespace, &apply, &Patch::Apply(object)).await?;
    let data: BTreeMap<&str, &str> = layouts.iter().copied().collect();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    Api::<ConfigMap>::namespaced(client.clone(), namespace)
        .patch(name, &apply, &Patch::Apply(object))
        .await?;
    Ok(())
}
