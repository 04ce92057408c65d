//! Evicts pods for others through the eviction API, so that disruption budgets are kept.

use crate::cluster_index::Eviction;
use crate::events::{EventReason, Recorder};
use crate::metrics::Metrics;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction as EvictionBody;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kerf_core::keys;
use kerf_core::names::{PodKey, PodUid};
use kube::api::PostParams;
use kube::{Api, Client};
use std::time::Duration;
use tokio::time::timeout;

/// Timeout of one call. The watch shows later whether the eviction happened.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Evicts one pod. Returns false if the API server refuses.
pub async fn evict(client: &Client, metrics: &Metrics, events: &Recorder, eviction: Eviction) -> bool {
    let Eviction { uid, pod, node, makes_room_for_pod, .. } = eviction;
    tracing::info!(%pod, %uid, %node, makes_room_for = %makes_room_for_pod, "evicting a movable pod");
    let refused = match timeout(TIMEOUT, post(client, &pod, &uid)).await {
        Ok(Ok(())) => {
            metrics.moved();
            let note = format!(
                "evicted from {node} so that {makes_room_for_pod} finds room: its owner has marked it {}; its controller makes \
                 another, which finds room elsewhere",
                keys::MOVABLE
            );
            events.publish(&pod, &uid, EventReason::EvictedForAnother, note).await;
            return true;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(%pod, %uid, reason = refused, makes_room_for = %makes_room_for_pod, "failed to evict a pod");
    false
}

/// Evicts the pod of this name if it has this UID.
///
/// The request is written out, because kube 5.0's `Api::evict` spells `deleteOptions` so that the API server ignores it
/// and the UID in it. If the pod that has the name now has another UID, the API server retries for seconds, so callers
/// set a timeout.
async fn post(client: &Client, pod: &PodKey, uid: &PodUid) -> Result<(), kube::Error> {
    let metadata = ObjectMeta {
        name: Some(pod.name.clone()),
        namespace: Some(pod.namespace.clone()),
        ..ObjectMeta::default()
    };
    let only = Preconditions { uid: Some(uid.to_string()), resource_version: None };
    let delete_options = Some(DeleteOptions { preconditions: Some(only), ..DeleteOptions::default() });
    let body = EvictionBody { delete_options, metadata };
    let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace);
    let params = PostParams::default();
    pods.create_subresource("eviction", &pod.name, &params, &body).await.map(|_: serde_json::Value| ())
}
