//! Who holds GPUs of a node, by NVIDIA's plugin or by kerf: asked of the API server, not of a watch, since a change rests on it.

use super::PATIENCE;
use crate::in_time::{Unanswered, in_time};
use kerf_core::names::{NodeName, PodKey};
use kerf_runtime::plugin_pod::PluginPod;
use kube::api::{Api, ListParams};

/// Pods that are bound to the node, have not ended, and ask for a device of the plugin's, whoever scheduled them; and those that
/// have slices from when the node was kerf's.
pub(super) async fn of(client: &kube::Client, node: &NodeName) -> Result<Vec<PodKey>, Unanswered> {
    let here = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let pods = Api::<PluginPod>::all(client.clone());
    let found = in_time(PATIENCE, pods.list(&ListParams::default().fields(&here))).await?;
    Ok(found.items.iter().filter(|pod| pod.holds_gpus()).map(PluginPod::key).collect())
}
