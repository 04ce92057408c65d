//! Creates `GpuNodes` that have no agent: the inventory of a large cluster.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kerf_core::contract::{GpuNodeStatus, Holder, MigPart, Shape, SliceReservation, SliceState, SliceStatus};
use kerf_core::names::{DeviceId, GpuUuid, NodeName, PodUid, SliceId};
use kerf_core::testing::node_status;
use kerf_runtime::gpu_node::GpuNode;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::wait;
use crate::control_plane::ControlPlane;

const AT_ONCE: usize = 16;
/// How long the API server may still enforce a guard whose binding is deleted.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Creates `count` `GpuNodes` of eight GPUs each, of several models, cut and used in many ways.
pub async fn create_gpu_nodes(plane: &ControlPlane, count: u32) -> anyhow::Result<()> {
    // These bindings reserve `GpuNodes` for kerf's own programs, so they would reject the writes below.
    let bindings = ["gpunodes.guard.kerf.dev", "gpunodes-status.guard.kerf.dev"];
    let delete = ["delete", "validatingadmissionpolicybinding", "--ignore-not-found"];
    plane.kubectl(&[&delete[..], &bindings].concat()).await?;
    let nodes = Api::<GpuNode>::all(plane.client());
    let write = async |number: u32| {
        let name = format!("n{number}");
        let object = GpuNode::new(&NodeName::new(&name));
        let patch = Patch::Merge(json!({"status": node(number)?}));
        // The API server enforces deleted bindings for a moment, so rejected writes are retried.
        let created = async || Ok(nodes.create(&PostParams::default(), &object).await.map(|_| true)?);
        wait(TIMEOUT, "a GpuNode to be taken", created).await?;
        let reported =
            async || Ok(nodes.patch_status(&name, &PatchParams::default(), &patch).await.map(|_| true)?);
        wait(TIMEOUT, "a status to be taken", reported).await
    };
    stream::iter(0..count).map(write).buffer_unordered(AT_ONCE).try_collect().await
}

/// The cluster's GPU models, and the MIG profile that each is cut into.
const FLEET: [(&str, Option<&str>); 4] = [
    ("H100-80GB", Some("1g.10gb")),
    ("A100-40GB", Some("1g.5gb")),
    ("H200-141GB", Some("1g.18gb")),
    ("L4-24GB", None),
];

/// Eight GPUs of one model, each cut into none to six slices, all of them held by pods.
fn node(number: u32) -> anyhow::Result<GpuNodeStatus> {
    let (model, profile) = FLEET[usize::try_from(number)? % FLEET.len()];
    let mut status = node_status(&[model; 8]);
    for gpu in &mut status.gpus {
        gpu.uuid = GpuUuid::new(format!("GPU-{number:08x}-7f3c-4a1e-9d52-{:012x}", gpu.index));
        let Some(profile) = profile else { continue };
        for start in 0..(number + gpu.index) % 7 {
            let (id, pod) =
                (format!("s{}-{start}", gpu.index), format!("worker-{number}-{}-{start}", gpu.index));
            let resource = format!("nvidia.com/mig-{profile}");
            let shape = Shape::Mig {
                profile: profile.parse()?,
                start: u8::try_from(start)?,
                size: 1,
                part: MigPart::Whole,
            };
            let reservation = SliceReservation {
                uid: PodUid::new(format!("{number:08x}-0000-4000-8000-{:08x}{start:04x}", gpu.index)),
                namespace: "default".to_owned(),
                pod: pod.clone(),
                container: "main".to_owned(),
                resource: resource.parse()?,
                alone: false,
                binding: false,
            };
            let (namespace, container) = ("default".to_owned(), "main".to_owned());
            status.slices.push(SliceStatus {
                id: Some(SliceId::new(&id)),
                gpu: gpu.uuid.clone(),
                shape,
                state: SliceState::Held,
                memory: shape.size().share_memory(),
                device: Some(DeviceId::new(format!("MIG-{number}-{id}"))),
                resource: Some(reservation.resource),
                ready_for: Some(reservation.uid.clone()),
                holder: Some(Holder { namespace, pod, container }),
                message: None,
                reservation: Some(reservation),
                leaving: false,
            });
        }
    }
    Ok(status)
}
