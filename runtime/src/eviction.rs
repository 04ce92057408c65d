//! The eviction of one pod and no namesake, by the eviction API: disruption budgets are kept.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use kerf_core::names::{PodKey, PodUid};
use kube::api::PostParams;
use kube::{Api, Client};

/// Evicts the pod of this name, if it is the one of this UID.
///
/// Written out, because kube 5.0's `Api::evict` spells `deleteOptions` so that the API server overlooks it, and the UID in it.
/// Where the UID is not that of the pod that is there now, the API server tries for seconds: callers set a time-out.
pub async fn evict(client: &Client, pod: &PodKey, uid: &PodUid) -> Result<(), kube::Error> {
    let metadata = ObjectMeta {
        name: Some(pod.name.clone()),
        namespace: Some(pod.namespace.clone()),
        ..ObjectMeta::default()
    };
    let only = Preconditions { uid: Some(uid.to_string()), resource_version: None };
    let delete_options = Some(DeleteOptions { preconditions: Some(only), ..DeleteOptions::default() });
    let body = Eviction { delete_options, metadata };
    let pods = Api::<Pod>::namespaced(client.clone(), &pod.namespace);
    let params = PostParams::default();
    pods.create_subresource("eviction", &pod.name, &params, &body).await.map(|_: serde_json::Value| ())
}
