//! The node's policy: kinds of slices and MIG modes of GPUs, compute instances, bad policies.

use kerf_core::contract::{Condition, MigPart, Shape, SliceState};
use kerf_core::kind::Kind;
use kerf_core::mig::ComputeInstance;
use kerf_core::units::SizeGb;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::node_agent::scene::{NODE, ONE, Scene, h100, mig};

#[tokio::test(flavor = "multi_thread")]
async fn the_mig_mode_is_switched_only_on_an_empty_gpu_and_if_policy_allows_it() -> anyhow::Result<()> {
    let scene = Scene::start(MockConfig::new().seed(NODE).gpus(Model::H100, 1, MigMode::Disabled)).await?;
    scene.set_policy(&json!({"gpus": [{"kinds": ["mig"]}]})).await?;
    let complaint = scene.complaint(Condition::GPUS_HEALTHY).await?;
    assert!(complaint.contains("set modeChange"), "{complaint}");
    scene.set_policy(&json!({"gpus": [{"kinds": ["mig"], "modeChange": "without-reset"}]})).await?;
    scene.until("MIG to be on", |s| s.gpus[0].kinds == [Kind::Mig]).await?;
    scene.event("ModeChanged", NODE).await?;
    scene.hold(&[], ("s1", mig("1g.10gb", 0, 1)?), ("a", ONE)).await?;

    scene.set_policy(&json!({"gpus": [{"kinds": ["mps"], "modeChange": "without-reset"}]})).await?;
    scene.until("nothing new to be offered", |s| s.gpus[0].kinds.is_empty()).await?;
    scene.slice_until("s1", SliceState::Held).await?;
    assert_eq!(scene.cut()?, ["1g.10gb at 0"]);
    scene.pods().delete("a", &DeleteParams::default()).await?;
    scene.until("MIG to be off", |s| s.gpus[0].kinds == [Kind::Mps]).await?;
    scene.hold(&[], ("s2", Shape::mps(SizeGb(4))), ("b", "nvidia.com/gpu-4gb")).await?;
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn compute_instances_share_a_gpu_instance() -> anyhow::Result<()> {
    let scene = Scene::start(h100()).await?;
    scene.set_policy(&json!({"gpus": [{"computeInstances": true}]})).await?;
    let name = "nvidia.com/mig-1c.3g.40gb";
    let part = |start| {
        let Shape::Mig { profile, start: at, size, .. } = mig("3g.40gb", 4, 4)? else {
            anyhow::bail!("no MIG")
        };
        anyhow::Ok(Shape::Mig {
            profile,
            start: at,
            size,
            part: MigPart::Compute(ComputeInstance { start, compute: 1 }),
        })
    };
    let (_, first) = scene.hold(&[], ("s1", part(0)?), ("a", name)).await?;
    let (_, second) = scene.hold(std::slice::from_ref(&first), ("s2", part(2)?), ("b", name)).await?;
    let devices = [scene.visible("a"), scene.visible("b")];
    assert!(devices[0].is_some() && devices[0] != devices[1], "{devices:?}");
    scene.pods().delete("a", &DeleteParams::default()).await?;
    scene.slice_until("s1", SliceState::Idle).await?;
    scene.hold(&[second], ("s3", part(0)?), ("c", name)).await?;
    assert_eq!(scene.slice_until("s2", SliceState::Held).await?.holder.map(|h| h.pod).as_deref(), Some("b"));
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_policy_is_reported_and_the_last_valid_one_stays() -> anyhow::Result<()> {
    let scene = Scene::start(h100()).await?;
    let patch = Patch::Merge(json!({"spec": {"policy": {"gpus": [{"kinds": ["mig"], "exclusive": true}]}}}));
    scene.gpu_nodes.patch(NODE, &PatchParams::default(), &patch).await?;
    let complaint = scene.complaint(Condition::READY).await?;
    assert!(complaint.contains("exclusive"), "{complaint}");
    let patch = Patch::Merge(json!({"spec": {"policy": {"gpus": [{"kinds": ["mig"]}]}}}));
    scene.gpu_nodes.patch(NODE, &PatchParams::default(), &patch).await?;
    scene.holds(Condition::READY).await?;
    scene.stop().await
}
