//! Reads and writes GPU Operator's `ClusterPolicy`, which need not exist.

use super::TIMEOUT;
use crate::api_timeout::{ApiFailure, with_timeout};
use kerf_core::keys;
use kerf_core::plugin_layout::{ClusterPolicyWrite, SeenClusterPolicy};
use kerf_runtime::cluster_policy::{api, heeded, seen};
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

/// The `ClusterPolicy` that GPU Operator uses, with its version; `None` without GPU Operator.
pub(super) async fn read(client: &kube::Client) -> Result<Option<(SeenClusterPolicy, String)>, ApiFailure> {
    let found = match with_timeout(TIMEOUT, api(client).list(&ListParams::default())).await {
        Err(ApiFailure::Api(kube::Error::Api(status))) if status.code == 404 => return Ok(None),
        found => found?,
    };
    let Some(policy) = heeded(found.items) else { return Ok(None) };
    let version = policy.metadata.resource_version.clone().unwrap_or_default();
    Ok(Some((seen(&policy)?, version)))
}

/// Writes the fields that layouts concern, if the object still has this version.
pub(super) async fn write(
    client: &kube::Client,
    write: &ClusterPolicyWrite,
    version: &str,
) -> Result<(), ApiFailure> {
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
    with_timeout(TIMEOUT, api(client).patch(name, &params, &Patch::Merge(patch))).await.map(drop)
}
