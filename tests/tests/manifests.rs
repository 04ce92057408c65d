//! A real API server accepts what `deploy/` ships.

use anyhow::bail;
use kerf_core::contract::{
    ComputeLimit, GpuNodeSpec, GpuNodeStatus, GpuRule, GpuSelector, MigPart, MigRule, ModeChange, MpsRule,
    NodePolicy, OverUse, Shape, SliceLength, Summary, TimeSlicingRule, WarmSlices,
};
use kerf_core::kind::Kind;
use kerf_core::ledger;
use kerf_core::mig::ComputeInstance;
use kerf_core::names::NodeName;
use kerf_core::packing::Fleet;
use kerf_core::testing::{gpu_uuid, node_status, owner_in_epoch, request, slice_status};
use kerf_core::units::MemoryMib;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::cluster::root;
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn the_manifests_can_be_applied_twice() -> anyhow::Result<()> {
    let plane = ControlPlane::start(ControlPlaneOptions::without_controller_manager()).await?;
    let base = root().join("deploy/base").display().to_string();
    let first = plane.kubectl(&["apply", "--server-side", "-k", &base]).await?;
    for object in [
        "deployment.apps/kerf-webhook",
        "deployment.apps/kerf-extender",
        "deployment.apps/kerf-scheduler",
        "daemonset.apps/kerf-node-agent",
    ] {
        assert!(first.contains(object), "{object} is missing in\n{first}");
    }
    plane.kubectl(&["apply", "--server-side", "-k", &base]).await?;
    plane.stop().await
}

/// The API server would silently prune a field that the schema lacks, so both documents must come back as they were
/// written.
#[tokio::test(flavor = "multi_thread")]
async fn the_schema_keeps_every_field_of_the_documents() -> anyhow::Result<()> {
    let plane = ControlPlane::start(ControlPlaneOptions::without_controller_manager()).await?;
    let crd = root().join("deploy/base/gpunodes.kerf.dev.yaml").display().to_string();
    plane.kubectl(&["apply", "--server-side", "-f", &crd]).await?;
    plane.definitions_established().await?;
    let (spec, status) = full()?;
    let nodes = Api::<GpuNode>::all(plane.client());
    let node = GpuNode { spec: Some(json!(spec)), ..GpuNode::new(&NodeName::new("n")) };
    nodes.create(&PostParams::default(), &node).await?;
    nodes.patch_status("n", &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await?;
    let read = nodes.get("n").await?;
    assert_eq!(read.read_spec()?, spec);
    assert_eq!(read.read_status()?, Some(status));
    plane.stop().await
}

/// Documents in which every field has a value.
fn full() -> anyhow::Result<(GpuNodeSpec, GpuNodeStatus)> {
    let mut status = node_status(&["H100-80GB", "T4-16GB"]);
    let mut spec = GpuNodeSpec { revision: 3, epoch: 2, ..GpuNodeSpec::default() };
    for (pod, resource) in
        [("a", "nvidia.com/mig-1g.10gb"), ("b", "nvidia.com/gpu-4gb"), ("c", "nvidia.com/mig-2g.20gb")]
    {
        spec =
            ledger::reserve(&spec, &status, &request(resource, 1), &owner_in_epoch(pod), &Fleet::default())
                .unwrap_or(spec);
    }
    assert_eq!(spec.slices.len(), 3);
    assert_eq!(spec.slices[0].gpu, gpu_uuid(0));
    spec.policy = full_policy()?;
    // The schema must keep the fields of compute instances and of pods that are alone, too, and the sample has neither.
    let Some(Shape::Mig { part, .. }) = spec.slices.last_mut().map(|slice| &mut slice.shape) else {
        bail!("the last slice is no GPU instance");
    };
    *part = MigPart::Compute(ComputeInstance { start: 1, compute: 1 });
    spec.slices[0].reservation.iter_mut().for_each(|reservation| reservation.alone = true);
    status.slices = spec.slices.iter().map(|s| slice_status(s, true)).collect();
    status.slices[0].message = Some("why".to_owned());
    let gpu = &mut status.gpus[1];
    (gpu.outside, gpu.mps_shares, gpu.message) = (MemoryMib(512), Some(48), Some("what is wrong".to_owned()));
    (gpu.pci_bus_id, gpu.reserved) = (Some("0000:1b:00.0".parse()?), Some(MemoryMib(480)));
    let [gpus, mode, free] = ["1x H100-80GB", "mig", "1Gi"].map(str::to_owned);
    status.summary = Summary { gpus, mode, held: 1, idle: 1, free };
    Ok((spec, status))
}

/// A policy in which every field has a value.
fn full_policy() -> anyhow::Result<NodePolicy> {
    let rule = GpuRule {
        select: GpuSelector {
            indexes: vec![0, 1],
            uuids: vec![gpu_uuid(0)],
            pci_bus_ids: vec!["0000:1b:00.0".parse()?],
            models: vec!["H100-80GB".to_owned()],
        },
        kinds: Kind::ALL.to_vec(),
        mode_change: ModeChange::WithReset,
        compute_instances: true,
        mig: MigRule { time_slicing: Some(serde_json::from_str("3")?) },
        mps: MpsRule {
            strict: true,
            exclusive: false,
            memory_percent: serde_json::from_str("150")?,
            compute_limit: ComputeLimit::None,
            replicas: None,
        },
        time_slicing: TimeSlicingRule { replicas: Some(4), length: SliceLength::Long, memory_limits: true },
        layout: serde_json::from_str(r#"[{"resource": "nvidia.com/gpu.shared", "count": 4}]"#)?,
    };
    // Equal MPS shares exclude a memory fraction for all shares.
    let equal = MpsRule { replicas: Some(serde_json::from_str("4")?), ..MpsRule::default() };
    Ok(NodePolicy {
        gpus: vec![rule, GpuRule { mps: equal, ..GpuRule::default() }],
        warm: vec![WarmSlices { resource: "nvidia.com/mig-1g.10gb".parse()?, count: 2 }],
        over_use: OverUse::Evict,
        remove_rejected_pods: true,
    })
}
