//! Writes labels, record and condition of a Node.

use super::TIMEOUT;
use crate::api_timeout::{ApiFailure, with_timeout};
use crate::objects::node_view::NodeView;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kerf_core::keys;
use kerf_core::names::NodeName;
use kerf_core::plugin_layout::{Condition, NodeRecord, NodeWrite};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Map, Value, json};

fn params() -> PatchParams {
    PatchParams { field_manager: Some("kerf-extender".to_owned()), ..PatchParams::default() }
}

/// Writes labels and record in one patch, if the Node still has this version.
pub(super) async fn labels(
    nodes: &Api<Node>,
    name: &NodeName,
    write: &NodeWrite,
    version: &str,
) -> Result<NodeView, ApiFailure> {
    let labels: Map<String, Value> =
        write.labels.entries().into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    let record = write.record.as_ref().map(NodeRecord::to_json);
    let patch = json!({
        "metadata": {"resourceVersion": version, "labels": labels, "annotations": {keys::PLUGIN_LAYOUT: record}},
    });
    view(&with_timeout(TIMEOUT, nodes.patch(name.as_str(), &params(), &Patch::Merge(patch))).await?)
}

/// Writes the condition, or removes it. `before` is the status that the Node has now; it decides whether this is a
/// transition.
pub(super) async fn condition(
    nodes: &Api<Node>,
    name: &NodeName,
    condition: Option<&Condition>,
    before: Option<&str>,
) -> Result<NodeView, ApiFailure> {
    let written = match condition {
        None => json!({"type": keys::LAYOUT_CONDITION, "$patch": "delete"}),
        Some(Condition { status, reason, message }) => {
            let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let mut written = json!({
                "type": keys::LAYOUT_CONDITION, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now,
            });
            if before != Some(status.as_str()) {
                written["lastTransitionTime"] = json!(now);
            }
            written
        }
    };
    let patch = Patch::Strategic(json!({"status": {"conditions": [written]}}));
    view(&with_timeout(TIMEOUT, nodes.patch_status(name.as_str(), &params(), &patch)).await?)
}

fn view(node: &Node) -> Result<NodeView, ApiFailure> {
    Ok(serde_json::from_value(serde_json::to_value(node)?)?)
}
