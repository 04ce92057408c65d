//! GPU Operator's `ClusterPolicy`, read without its types: where the operator is not installed there is no such resource.

use super::PATIENCE;
use crate::in_time::{Unanswered, in_time};
use kerf_core::keys;
use kerf_core::plugin_layout::{
    ClusterPolicyRecord, ClusterPolicyWrite, OperatorSettings, SeenClusterPolicy,
};
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// Cluster-scoped; GPU Operator heeds one, and calls the others `ignored`.
fn api(client: &kube::Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("nvidia.com", "v1", "ClusterPolicy");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, "clusterpolicies"))
}

/// The one that GPU Operator heeds, with its version; `None` without GPU Operator.
pub(super) async fn read(client: &kube::Client) -> Result<Option<(SeenClusterPolicy, String)>, Unanswered> {
    let found = match in_time(PATIENCE, api(client).list(&ListParams::default())).await {
        Err(Unanswered::Api(kube::Error::Api(status))) if status.code == 404 => return Ok(None),
        found => found?,
    };
    let mut heeded: Vec<_> =
        found.items.into_iter().filter(|policy| state(policy) != Some("ignored")).collect();
    heeded.sort_by_key(|policy| (policy.metadata.creation_timestamp.clone(), policy.metadata.name.clone()));
    let Some(policy) = heeded.into_iter().next() else { return Ok(None) };
    let version = policy.metadata.resource_version.clone().unwrap_or_default();
    Ok(Some((seen(&policy)?, version)))
}

fn state(policy: &DynamicObject) -> Option<&str> {
    policy.data["status"]["state"].as_str()
}

fn seen(policy: &DynamicObject) -> Result<SeenClusterPolicy, serde_json::Error> {
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

/// Writes the fields that layouts have to do with, if the object is still that version.
pub(super) async fn write(
    client: &kube::Client,
    write: &ClusterPolicyWrite,
    version: &str,
) -> Result<(), Unanswered> {
    let ClusterPolicyWrite { name, settings, record } = write;
    let record = record.as_ref().map(serde_json::to_string).transpose()?;
    let patch = json!({
        "metadata": {"resourceVersion": version, "annotations": {keys::PLUGIN_LAYOUT: record}},
        "spec": {
            "devicePlugin": {"config": {"name": settings.config_map, "default": settings.default_key}},
            "mig": {"strategy": settings.mig_strategy},
        },
    });
    let params = PatchParams { field_manager: Some("kerf-extender".to_owned()), ..PatchParams::default() };
    in_time(PATIENCE, api(client).patch(name, &params, &Patch::Merge(patch))).await.map(drop)
}
