//! The `ConfigMap` from which NVIDIA's device plugin takes its configuration.

use super::{Unanswered, in_time};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeMap;

/// What it holds; `None` if it is not there.
pub(super) async fn read(
    client: &kube::Client,
    namespace: &str,
    name: &str,
) -> Result<Option<BTreeMap<String, String>>, Unanswered> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    Ok(in_time(api.get_opt(name)).await?.map(|found| found.data.unwrap_or_default()))
}

/// Makes it hold just `data`.
pub(super) async fn write(
    client: &kube::Client,
    namespace: &str,
    name: &str,
    data: &BTreeMap<String, String>,
) -> Result<(), Unanswered> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    let params = PatchParams::apply("kerf-extender").force();
    let written = in_time(api.patch(name, &params, &Patch::Apply(object))).await?;
    // Keys that others have added stay under apply, and would be taken for a node's only configuration.
    let others: BTreeMap<_, _> = written
        .data
        .unwrap_or_default()
        .into_keys()
        .filter(|key| !data.contains_key(key))
        .map(|key| (key, ()))
        .collect();
    if !others.is_empty() {
        let patch = Patch::Merge(json!({"data": others}));
        in_time(api.patch(name, &PatchParams::default(), &patch)).await?;
    }
    Ok(())
}
