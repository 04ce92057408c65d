//! The driver's upgrade without a reboot, as GPU Operator's driver manager does it.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kerf_core::contract::{GpuNodeStatus, SliceState};
use kerf_tests::cluster::wait;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::node_agent::scene::{NODE, Scene, TIMEOUT, h100, mig};

const LABEL: &str = "nvidia.com/gpu.deploy.dcgm";

/// Sets the label as the driver manager does, or restores it.
async fn label(scene: &Scene, value: Value) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: value}}}));
    Api::<Node>::all(scene.plane.client()).patch(NODE, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Makes the kernel load the driver's module in place of the old one.
fn load(dir: &Path, old: &str) -> anyhow::Result<()> {
    let module = dir.join("sys/module/nvidia");
    if module.exists() {
        std::fs::rename(&module, dir.join(old))?;
    }
    Ok(std::fs::create_dir_all(module)?)
}

/// A node whose driver is loaded, and whose agent serves.
async fn start() -> anyhow::Result<Scene> {
    let scene = Scene::prepare(h100(), |dir| load(dir, "none")).await?;
    scene.until("the agent to serve", GpuNodeStatus::is_ready).await?;
    Ok(scene)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_releases_the_driver_and_recreates_slices_after_its_reload() -> anyhow::Result<()> {
    let mut scene = start().await?;
    scene.want(vec![scene.wanted("s1", mig("3g.40gb", 4, 4)?, None).await?]).await?;
    let before = scene.slice_until("s1", SliceState::Idle).await?;
    let maps = format!("/proc/{}/maps", scene.agent.id());
    let has_nvml = || std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("nvml"));
    assert!(has_nvml(), "by this it is seen");

    label(&scene, json!("paused-for-driver-upgrade")).await?;
    let reported = |status: &GpuNodeStatus| {
        status.conditions.iter().any(|c| c.reason == "DriverUpgrade" && c.message.contains(LABEL))
    };
    let status = scene.until("the upgrade to be reported", reported).await?;
    assert!(!status.is_ready() && status.slices.iter().all(|slice| slice.ready_for.is_none()));
    assert!(scene.event("DriverUpgrade", NODE).await?.contains("paused-for-driver-upgrade"));
    wait(TIMEOUT, "both sessions to be closed", async || Ok(!has_nvml())).await?;
    assert_eq!(scene.agent.exited()?, None, "it waits for the upgrade's end");

    // This is the same boot: a Hopper's MIG mode is lost with the module.
    load(&scene.dir, "old")?;
    scene.happen(|control| control.boot("load-2"))?;
    label(&scene, Value::Null).await?;
    let agent = &mut scene.agent;
    wait(TIMEOUT, "the agent to end", async || Ok(agent.exited()?.is_some())).await?;
    assert!(agent.exited()?.is_some_and(|status| status.success()));
    scene.start_agent().await?;
    let anew = |status: &GpuNodeStatus| {
        let device = status.slices.iter().find_map(|slice| slice.device.clone());
        status.is_ready() && device.is_some() && device != before.device
    };
    scene.until("the slice to be made again", anew).await?;
    assert_eq!(scene.cut()?, ["3g.40gb at 4"]);
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_restores_mig_mode_after_a_driver_reload_but_not_after_an_admin_switched_it_off()
-> anyhow::Result<()> {
    let mut scene = start().await?;
    scene.want(vec![scene.wanted("s1", mig("3g.40gb", 4, 4)?, None).await?]).await?;
    scene.slice_until("s1", SliceState::Idle).await?;
    for (reloads, cut) in [(true, &["3g.40gb at 4"][..]), (false, &[])] {
        scene.agent.terminate(Duration::from_secs(10))?;
        if reloads {
            load(&scene.dir, "old")?;
        }
        // Without a reload the mock's boot plays an admin's nvidia-smi: the mode is off and nothing is cut.
        scene.happen(|control| control.boot(format!("off-{reloads}")))?;
        scene.start_agent().await?;
        scene.until("the agent to serve", GpuNodeStatus::is_ready).await?;
        assert_eq!(scene.cut()?, cut, "reloaded: {reloads}");
    }
    scene.stop().await
}
