//! GPU Operator's `ClusterPolicy`, read as dynamic objects, because a cluster without the operator has no such
//! resource.

use kerf_core::keys;
use kerf_core::plugin_layout::{ClusterPolicyRecord, OperatorSettings, SeenClusterPolicy};
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

/// An API for the cluster-scoped `ClusterPolicy`. GPU Operator obeys one object and sets the state of all others to
/// `ignored`.
#[must_use]
pub fn api(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("nvidia.com", "v1", "ClusterPolicy");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "clusterpolicies"))
}

/// The object that GPU Operator obeys: the oldest that is not `ignored`, and by name among equally old ones.
#[must_use]
pub fn heeded(policies: Vec<DynamicObject>) -> Option<DynamicObject> {
    let heeded = policies.into_iter().filter(|policy| state(policy) != Some("ignored"));
    heeded.min_by_key(|policy| (policy.metadata.creation_timestamp.clone(), policy.metadata.name.clone()))
}

fn state(policy: &DynamicObject) -> Option<&str> {
    policy.data["status"]["state"].as_str()
}

/// The fields of a `ClusterPolicy` that matter to layouts of NVIDIA's device plugin.
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
