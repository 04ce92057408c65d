//! `GpuNodes` that no agent stands behind: the inventory of a large cluster.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kerf_core::contract::GpuNodeStatus;
use kerf_core::names::{GpuUuid, NodeName};
use kerf_core::testing::node_status;
use kerf_runtime::gpu_node::GpuNode;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::wait;
use crate::control_plane::ControlPlane;

/// How many are written at once.
const AT_ONCE: usize = 16;

/// Creates `count` `GpuNodes` of eight H100 each.
pub async fn create_gpu_nodes(plane: &ControlPlane, count: u32) -> anyhow::Result<()> {
    // Only a node's agent may write its status otherwise.
    let binding = ["delete", "validatingadmissionpolicybinding", "gpunodes-status.guard.kerf.dev"];
    plane.kubectl(&[&binding[..], &["--ignore-not-found"]].concat()).await?;
    let nodes = Api::<GpuNode>::all(plane.client());
    let write = async |number: u32| {
        let name = format!("n{number}");
        nodes.create(&PostParams::default(), &GpuNode::new(&NodeName::new(&name))).await?;
        let patch = Patch::Merge(json!({"status": status(number)}));
        let written =
            async || Ok(nodes.patch_status(&name, &PatchParams::default(), &patch).await.map(|_| true)?);
        // The API server takes a moment to hear that the binding is gone.
        wait(std::time::Duration::from_secs(20), "a status to be taken", written).await
    };
    stream::iter(0..count).map(write).buffer_unordered(AT_ONCE).try_collect().await
}

fn status(number: u32) -> GpuNodeStatus {
    let mut status = node_status(&["H100-80GB"; 8]);
    for gpu in &mut status.gpus {
        gpu.uuid = GpuUuid::new(format!("GPU-{number:08x}-7f3c-4a1e-9d52-{:012x}", gpu.index));
    }
    status
}
