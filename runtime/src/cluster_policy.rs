//! GPU Operator's `ClusterPolicy`, read without its types: where the operator is not installed there is no such resource.

use kerf_core::keys;
use kerf_core::plugin_layout::{ClusterPolicyRecord, OperatorSettings, SeenClusterPolicy};
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

/// Cluster-scoped; GPU Operator heeds one, and calls the others `ignored`.
#[must_use]
pub fn api(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("nvidia.com", "v1", "ClusterPolicy");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "clusterpolicies"))
}

/// The one that GPU Operator heeds among all that there are.
#[must_use]
pub fn heeded(policies: Vec<DynamicObject>) -> Option<DynamicObject> {
    let heeded = policies.into_iter().filter(|policy| state(policy) != Some("ignored"));
    heeded.min_by_key(|policy| (policy.metadata.creation_timestamp.clone(), policy.metadata.name.clone()))
}

fn state(policy: &DynamicObject) -> Option<&str> {
    policy.data["status"]["state"].as_str()
}

/// What layouts have to do with of it.
pub fn seen(policy: &DynamicObject) -> Result<SeenClusterPolicy, serde_json::Error> {
    let spec = &policy.data["spec"];
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let config = &spec["devicePlugin"]["config"];
    let strategy = &spec["mig"]["strategy"];
    let record = policy.metadata.annotations.as_ref().and_then(|all| all.get(keys::PLUGIN_LAYOUT));
    let record = record.map(|record| serde_json::from_str::<ClusterPolicyRecord>(record)).transpose()?;
    Ok(SeenClusterPolicy {
        name: policy.metadata.name.clone().unwrap_or_default(),
        settings: OperatorSettings {
            config_map: text(&config["name"]),
            default_key: text(&config["default"]),
            mig_strategy: text(strategy).map(|_| serde_json::from_value(strategy.clone())).transpose()?,
        },
        is_ready: state(policy) != Some("notReady"),
        record,
    })
}
