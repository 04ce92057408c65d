//! Writes to the API server, and retries each write while that can help.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use super::demand::PodKey;
use super::status;

/// Delay before the first retry. It doubles up to [`BACKOFF_LIMIT`].
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const BACKOFF_LIMIT: Duration = Duration::from_secs(2);

/// Number of tries: about 50 s in all, longer than an API server's restart.
const TRIES: u32 = 30;

/// Calls until it succeeds or the error is final. `None` if it did not succeed.
pub(super) async fn insist<T, F>(what: &str, mut call: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Result<T, kube::Error>>,
{
    let mut wait = FIRST_BACKOFF;
    for _ in 0..TRIES {
        match call().await {
            Ok(value) => return Some(value),
            Err(kube::Error::Api(status)) if status.code == 404 => return None,
            Err(error) if is_final(&error) => {
                tracing::warn!(what, %error, "the API server refused a write of the stand-in kubelet");
                return None;
            }
            Err(error) => tracing::debug!(what, %error, "a write of the stand-in kubelet is tried again"),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(BACKOFF_LIMIT);
    }
    tracing::warn!(what, "the stand-in kubelet gave a write up");
    None
}

/// Whether the error is final. Conflicts (409) and too many requests (429) are temporary, other client errors
/// are not.
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && ![409, 429].contains(&status.code))
}

/// Writes a pod's status, but not that of another pod with the same name. Returns whether the pod is gone.
pub(super) async fn write_status(client: &Client, key: &PodKey, uid: &str, status: Value) -> bool {
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
    let parameters = PatchParams::default();
    let written = insist("pod status", || async {
        match api.patch_status(&key.name, &parameters, &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
            // The UID does not match: the pod is gone, and another one has its name.
            Err(kube::Error::Api(status)) if status.code == 409 && status.message.contains("UID") => Ok(true),
            other => other.map(|_| false),
        }
    });
    written.await.unwrap_or(false)
}

/// Deletes a pod whose containers have ended; the API server waits for that.
pub(super) async fn remove(client: &Client, key: &PodKey, uid: &str) {
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.namespace);
    // A new pod may have the same name, and must not be deleted.
    let only_this = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let parameters = DeleteParams::default().grace_period(0).preconditions(only_this);
    insist("pod removal", || async {
        match api.delete(&key.name, &parameters).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(drop),
        }
    })
    .await;
}

/// Writes an Event with the reason of a rejection. It is not retried, as Events are best effort.
pub(super) async fn warn_about(client: &Client, node: &str, pod: &Pod, reason: &str, message: &str) {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let event = status::warning(node, pod, reason, message);
    if let Err(error) = api.create(&PostParams::default(), &event).await {
        tracing::debug!(%error, "an Event of the stand-in kubelet was not written");
    }
}
