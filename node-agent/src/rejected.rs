//! Removes pods: those of this node that the kubelet rejected for a device, if the policy says so, and those that use
//! more GPU memory than they were given.
//!
//! A pod that fails with `UnexpectedAdmissionError` is final: the kubelet does not retry, its controller creates
//! another, and the failed pods pile up. kerf's own pods cannot fail so; pods that bypassed kerf and pods of other
//! device plugins can.

use crate::pod_view::PodView;
use crate::recorder::{About, AgentEvent, Recorder};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::nvidia_keys;
use kerf_core::resource::ResourceName;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often failed pods are listed; nothing waits for it.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

const TIMEOUT: Duration = Duration::from_secs(5);

/// Removes the node's rejected pods while `wanted` is true, until `stop`.
pub async fn remove(
    client: Client,
    node: NodeName,
    mut wanted: watch::Receiver<bool>,
    recorder: Recorder,
    stop: CancellationToken,
) {
    loop {
        let reported =
            stop.run_until_cancelled(async { wanted.wait_for(|wanted| *wanted).await.is_ok() }).await;
        match reported {
            Some(true) => {}
            // The sender is gone, so the value cannot change; the task still waits, because a task that ends early
            // counts as a fault.
            Some(false) => return stop.cancelled().await,
            None => return,
        }
        if let Err(error) = remove_once(&client, &node, &recorder).await {
            tracing::warn!(%error, "the node's failed pods cannot be listed; trying again");
        }
        stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await;
    }
}

async fn remove_once(client: &Client, node: &NodeName, recorder: &Recorder) -> Result<(), kube::Error> {
    let failed = format!("spec.nodeName={node},status.phase=Failed");
    // Read from the API server's cache, because nothing waits for the removal.
    let pods =
        Api::<PodView>::all(client.clone()).list(&ListParams::default().fields(&failed).match_any()).await?;
    for pod in pods.items.iter().filter_map(Rejected::from_pod) {
        pod.delete(client, recorder).await;
    }
    Ok(())
}

/// A pod that the kubelet rejected and that its controller replaces.
struct Rejected {
    key: PodKey,
    uid: PodUid,
    message: String,
}

impl Rejected {
    /// Returns the pod if it is rejected, has a controller, requests GPUs and is not being deleted.
    fn from_pod(pod: &PodView) -> Option<Self> {
        let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
        let has_controller = owners.iter().any(|owner| owner.controller == Some(true));
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        if !pod.is_rejected() || !has_controller || is_leaving || !asks_for_gpus(pod) {
            return None;
        }
        let uid = PodUid::new(pod.metadata.uid.clone()?);
        Some(Self { key: pod.key(), uid, message: pod.status.message.clone() })
    }

    /// Deletes the pod. A failure is retried at the next poll.
    async fn delete(self, client: &Client, recorder: &Recorder) {
        match tokio::time::timeout(TIMEOUT, delete(client, &self.key, &self.uid)).await {
            Ok(Ok(())) => {}
            // Another client deleted it, and a new pod of the same name may exist by now.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => return,
            Ok(Err(error)) => {
                return tracing::warn!(pod = %self.key, %error, "a rejected pod was not deleted; trying again");
            }
            Err(_) => {
                return tracing::warn!(pod = %self.key, "a rejected pod was not deleted in time; trying again");
            }
        }
        tracing::info!(pod = %self.key, uid = %self.uid, reported = self.message, "deleted a pod that the kubelet had rejected");
        recorder.record(
            About::Pod { key: self.key, uid: Some(self.uid) },
            AgentEvent::RejectedPodRemoved { message: self.message },
        );
    }
}

/// Whether one of its containers requests a device under a name of kerf or NVIDIA.
fn asks_for_gpus(pod: &PodView) -> bool {
    let mut names = pod.spec.in_order().flat_map(|(container, _)| container.resources.limits.keys());
    names.any(|name| name.starts_with(nvidia_keys::PREFIX) || name.parse::<ResourceName>().is_ok())
}

/// Deletes the pod with this UID only, and no later pod of the same name.
async fn delete(client: &Client, pod: &PodKey, uid: &PodUid) -> Result<(), kube::Error> {
    let only = Preconditions { uid: Some(uid.to_string()), resource_version: None };
    let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    let pods = Api::<PodView>::namespaced(client.clone(), &pod.namespace);
    pods.delete(&pod.name, &params).await.map(drop)
}

/// A pod to delete for its use of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    pub key: PodKey,
    /// Its UID, so that a later pod of the same name stays.
    pub uid: PodUid,
    /// The reason, for the log.
    pub why: String,
}

/// Deletes the requested pods until `stop`, with their grace period. This is how the kubelet evicts under pressure: it
/// ignores disruption budgets, because such a pod takes its neighbours' memory. The agent has no right to the eviction
/// API: an eviction does not show its pod, so no admission policy could limit the agent to pods of its own node. A
/// refused deletion is retried only on a new request.
pub async fn evict(client: Client, mut requests: mpsc::Receiver<Eviction>, stop: CancellationToken) {
    let mut calls = JoinSet::new();
    while let Some(Some(eviction)) = stop.run_until_cancelled(requests.recv()).await {
        while calls.try_join_next().is_some() {}
        calls.spawn(evict_one(client.clone(), eviction));
    }
    // The loop that requests evictions may end first; a task that ends early counts as a fault.
    stop.cancelled().await;
}

async fn evict_one(client: Client, eviction: Eviction) {
    let Eviction { key, uid, why } = &eviction;
    match tokio::time::timeout(TIMEOUT, delete(&client, key, uid)).await {
        Ok(Ok(())) => tracing::info!(pod = %key, %uid, why, "evicted"),
        Ok(Err(error)) => tracing::warn!(pod = %key, %uid, why, %error, "not evicted"),
        Err(_) => tracing::warn!(pod = %key, %uid, why, "not evicted: no answer in time"),
    }
}

#[cfg(test)]
#[path = "rejected_tests.rs"]
mod tests;
