//! Kubernetes Events of the extender's, about pods and nodes. An Event is for people; nothing waits for it.

use k8s_openapi::api::events::v1::Event;
use kerf_core::keys;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::plugin_layout::Told;
use kerf_runtime::event_note::{LONGEST_NOTE, shortened};
use kube::api::{Api, PostParams};
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

/// How long one write may take. What could not be told is told when it changes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a pod is told something, and what the extender did: both in the API's CamelCase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topic {
    /// Why.
    pub reason: &'static str,
    /// What was done.
    pub action: &'static str,
}

/// A pod waits because its namespace's quota is full.
pub const QUOTA_FULL: Topic = Topic { reason: "QuotaFull", action: "Scheduling" };

/// Tells a pod something. Each note is an Event of its own: an Event that is repeated keeps its first note.
pub async fn tell(client: &kube::Client, pod: &PodKey, uid: &PodUid, topic: Topic, note: String) {
    let event = match event(pod, uid, topic, note) {
        Ok(event) => event,
        Err(error) => return tracing::error!(%pod, reason = topic.reason, %error, "failed to make an Event"),
    };
    let api: Api<Event> = Api::namespaced(client.clone(), &pod.namespace);
    match timeout(PATIENCE, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%pod, reason = topic.reason, %error, "failed to write an Event"),
        Err(_) => tracing::warn!(%pod, reason = topic.reason, "failed to write an Event in time"),
    }
}

/// Tells a Node's users how its layout is. Its Events are in the namespace `default`, under its name, as the kubelet's are.
pub async fn tell_node(client: &kube::Client, node: &NodeName, told: Told) {
    let (reason, event) = (told.reason.clone(), node_event(node, told));
    let event = match event {
        Ok(event) => event,
        Err(error) => return tracing::error!(%node, reason, %error, "failed to make an Event"),
    };
    let api: Api<Event> = Api::namespaced(client.clone(), "default");
    match timeout(PATIENCE, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%node, reason, %error, "failed to write an Event"),
        Err(_) => tracing::warn!(%node, reason, "failed to write an Event in time"),
    }
}

fn node_event(node: &NodeName, told: Told) -> serde_json::Result<Event> {
    let Told { reason, message, is_warning } = told;
    serde_json::from_value(json!({
        "metadata": {"generateName": format!("{node}-"), "namespace": "default"},
        "eventTime": jiff::Timestamp::now(),
        "type": if is_warning { "Warning" } else { "Normal" },
        "reason": reason,
        "action": "ConfiguringDevicePlugin",
        "note": shortened(message),
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "reportingController": format!("{}/extender", keys::GROUP),
        "reportingInstance": "kerf-extender",
    }))
}

fn event(pod: &PodKey, uid: &PodUid, topic: Topic, mut note: String) -> serde_json::Result<Event> {
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    serde_json::from_value(json!({
        "metadata": {"generateName": format!("{}-", pod.name), "namespace": pod.namespace},
        "eventTime": jiff::Timestamp::now(),
        "type": "Warning",
        "reason": topic.reason,
        "action": topic.action,
        "note": note,
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": uid,
        },
        "reportingController": format!("{}/extender", keys::GROUP),
        "reportingInstance": "kerf-extender",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_pod_and_says_no_more_than_fits() {
        let told = event(&PodKey::new("ns", "a"), &"u".into(), QUOTA_FULL, "é".repeat(LONGEST_NOTE)).unwrap();
        assert_eq!(told.regarding.and_then(|pod| pod.uid).as_deref(), Some("u"));
        assert_eq!(told.note.map(|note| note.len()), Some(LONGEST_NOTE));
        assert_eq!(told.metadata.generate_name.as_deref(), Some("a-"));
    }
}
