//! Reads and writes the `ConfigMap` with the configuration of NVIDIA's device plugin.

use super::TIMEOUT;
use crate::api_timeout::{ApiFailure, with_timeout};
use k8s_openapi::api::core::v1::ConfigMap;
use kerf_core::keys;
use kerf_core::plugin_layout::{ConfigMapWrite, SeenConfigMap};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Map, Value, json};

/// Reads the keys, and since when each has been there.
pub(super) async fn read(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<SeenConfigMap, ApiFailure> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let Some(found) = with_timeout(TIMEOUT, api.get_opt(name)).await? else {
        return Ok(SeenConfigMap::default());
    };
    let times = found.metadata.annotations.and_then(|mut all| all.remove(keys::PLUGIN_LAYOUT));
    // Without these times the keys count as old, because another program wrote the `ConfigMap`.
    let written = times.and_then(|times| serde_json::from_str(&times).ok()).unwrap_or_default();
    Ok(SeenConfigMap { data: Some(found.data.unwrap_or_default()), written, error: None })
}

/// Makes the `ConfigMap` hold exactly these keys.
pub(super) async fn write(
    client: &kube::Client,
    namespace: &str,
    name: &str,
    write: &ConfigMapWrite,
) -> Result<(), ApiFailure> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let ConfigMapWrite { data, written } = write;
    let times = serde_json::to_string(written)?;
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "annotations": {keys::PLUGIN_LAYOUT: times}}, "data": data,
    });
    let params = PatchParams::apply("kerf-extender").force();
    let found = with_timeout(TIMEOUT, api.patch(name, &params, &Patch::Apply(object))).await?;
    // Server-side apply keeps keys that others have added. They are removed, because the plugin would take one for a
    // node's only configuration.
    let others: Map<String, Value> = found
        .data
        .unwrap_or_default()
        .into_keys()
        .filter(|key| !data.contains_key(key))
        .map(|key| (key, Value::Null))
        .collect();
    if !others.is_empty() {
        let patch = Patch::Merge(json!({"data": others}));
        with_timeout(TIMEOUT, api.patch(name, &PatchParams::default(), &patch)).await?;
    }
    Ok(())
}
