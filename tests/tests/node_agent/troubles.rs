//! Reboots, sick GPUs, folders that cannot be written, conflicting users of the GPUs.

use std::os::unix::net::UnixListener;

use anyhow::Context as _;
use kerf_core::contract::{Condition, GpuNodeStatus, SliceState, WantedSlice};
use kerf_core::ledger::Rejection;
use kerf_core::names::DeviceId;
use kerf_nvml_mock::{Fault, MigMode, MockConfig, MockControl, MockFiles, Model, NvmlCode, Xid};
use kerf_tests::cluster::wait;
use kube::api::DeleteParams;

use crate::node_agent::scene::{NODE, ONE, Scene, TIMEOUT, h100, mig, name_boot};

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_restores_its_slices_at_their_places_after_a_reboot() -> anyhow::Result<()> {
    let mut scene = Scene::start(h100()).await?;
    let (_, held) = scene.hold(&[], ("s1", mig("1g.10gb", 4, 1)?), ("a", ONE)).await?;
    let idle = scene.wanted("s2", mig("3g.40gb", 0, 4)?, None).await?;
    scene.want(vec![held, idle]).await?;
    let before = scene.slice_until("s2", SliceState::Idle).await?;

    // The agent dies with the node; instances and the Hopper's MIG mode are gone. No orders come meanwhile.
    scene.agent.kill()?;
    name_boot(&scene.dir, "boot-2")?;
    scene.happen(|control| control.boot("boot-2"))?;
    scene.start_agent().await?;
    let anew = |s: &GpuNodeStatus| {
        let device = s.slices.iter().find(|s| s.id.as_ref().is_some_and(|id| id.as_str() == "s2"));
        let device = device.and_then(|s| s.device.clone());
        s.is_ready() && device.is_some() && device != before.device
    };
    scene.until("the slices to be made anew", anew).await?;
    assert_eq!(scene.cut()?, ["3g.40gb at 0", "1g.10gb at 4"]);
    let log = scene.agent.log_tail();
    let (made, named) = (log.find("the recorded slices are there"), log.find("registered with the kubelet"));
    assert!(made.is_some() && made < named, "{log}");
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_with_an_xid_error_is_not_used_until_it_recovers() -> anyhow::Result<()> {
    let scene = Scene::start(h100()).await?;
    scene.want(vec![scene.wanted("s1", mig("1g.10gb", 0, 1)?, None).await?]).await?;
    scene.slice_until("s1", SliceState::Idle).await?;
    let error = |xid| Xid { id: format!("x{xid}"), gpu: 0, xid, gi: None, ci: None };
    scene.happen(|mut control| {
        control.xids.push(error(13));
        control.xids.push(error(74));
        control
    })?;
    let complaint = scene.complaint(Condition::GPUS_HEALTHY).await?;
    assert!(complaint.contains("XID 74"), "{complaint}");
    assert!(scene.event("GpuUnhealthy", NODE).await?.contains("XID 74"));
    scene
        .until("the GPU to come back", |s| s.gpus[0].message.is_none() && !s.gpus[0].kinds.is_empty())
        .await?;
    scene.event("GpuRecovered", NODE).await?;
    scene.hold(&[], ("s2", mig("1g.10gb", 1, 1)?), ("a", ONE)).await?;
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_subscribes_to_a_gpus_errors_once_the_gpu_responds() -> anyhow::Result<()> {
    let silent = |dir: &std::path::Path| {
        let fault = Fault::new("nvmlDeviceRegisterEvents", NvmlCode::UNKNOWN).on_gpu(0);
        Ok(MockControl::new().fault(fault).write(&MockFiles::in_folder(dir).control)?)
    };
    let scene = Scene::prepare(h100(), silent).await?;
    scene.until("the agent to serve", GpuNodeStatus::is_ready).await?;
    scene.happen(|mut control| {
        control.faults.clear();
        control
    })?;
    // An error event before the agent subscribes is lost.
    wait(TIMEOUT, "the GPU to be listened to", async || {
        Ok(scene.agent.log_tail().contains("error events are watched"))
    })
    .await?;
    scene.happen(|mut control| {
        control.xids.push(Xid { id: "x".to_owned(), gpu: 0, xid: 79, gi: None, ci: None });
        control
    })?;
    assert!(scene.event("GpuUnhealthy", NODE).await?.contains("XID 79"));
    scene.stop().await
}

/// While GPU 0 is in trouble its pod keeps its slice, and a pod is served on GPU 1. When the trouble is over both are
/// well.
async fn the_other_gpu_serves(scene: Scene, held: WantedSlice) -> anyhow::Result<()> {
    assert_eq!(scene.slice_until("s1", SliceState::Held).await?.holder.map(|h| h.pod).as_deref(), Some("a"));
    let pod = scene.create("b", ONE).await?;
    let mut other = scene.wanted("s2", mig("1g.10gb", 0, 1)?, Some((&pod, ONE))).await?;
    other.gpu = scene.status().await?.gpus[1].uuid.clone();
    scene.want(vec![held, other]).await?;
    scene.slice_until("s2", SliceState::Ready).await?;
    scene.run("b").await?;
    scene.happen(|mut control| {
        control.faults.clear();
        control
    })?;
    scene.holds(Condition::GPUS_HEALTHY).await?;
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gpu_is_reported_and_the_other_is_still_used() -> anyhow::Result<()> {
    let scene = Scene::start(MockConfig::new().seed(NODE).gpus(Model::H100, 2, MigMode::Enabled)).await?;
    let (_, held) = scene.hold(&[], ("s1", mig("1g.10gb", 0, 1)?), ("a", ONE)).await?;
    scene.happen(|control| control.fault(Fault::gpu_lost(0)))?;
    let complaint = scene.complaint(Condition::GPUS_HEALTHY).await?;
    assert!(complaint.contains("GPU 0") && complaint.contains("GPU_IS_LOST"), "{complaint}");
    the_other_gpu_serves(scene, held).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unresponsive_gpu_does_not_stop_the_other() -> anyhow::Result<()> {
    let scene = Scene::start(MockConfig::new().seed(NODE).gpus(Model::H100, 2, MigMode::Enabled)).await?;
    let (_, held) = scene.hold(&[], ("s1", mig("1g.10gb", 0, 1)?), ("a", ONE)).await?;
    scene.happen(|control| control.fault(Fault::hang("*").on_gpu(0)))?;
    let complaint = scene.complaint(Condition::GPUS_HEALTHY).await?;
    assert!(complaint.contains("GPU 0") && complaint.contains("has not answered"), "{complaint}");
    assert!(scene.status().await?.is_ready(), "the node serves its other GPU");
    the_other_gpu_serves(scene, held).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_gpu_node_gets_its_whole_status_again() -> anyhow::Result<()> {
    let scene = Scene::start(MockConfig::new().seed(NODE).gpus(Model::H100, 2, MigMode::Enabled)).await?;
    let remade = |holders: &'static [&'static str]| {
        move |s: &GpuNodeStatus| {
            let held = s.slices.iter().filter(|s| s.state == SliceState::Held);
            let held = held.filter_map(|s| s.holder.as_ref().map(|h| h.pod.as_str()));
            s.is_ready() && s.gpus.len() == 2 && held.eq(holders.iter().copied())
        }
    };
    // An unused node changes nothing by itself, so only the deleted object can make the agent write a status.
    scene.gpu_nodes.delete(NODE, &DeleteParams::default()).await?;
    scene.until("an unused node to be reported again", remade(&[])).await?;
    scene.hold(&[], ("s1", mig("1g.10gb", 0, 1)?), ("a", ONE)).await?;
    scene.gpu_nodes.delete(NODE, &DeleteParams::default()).await?;
    let status = scene.until("the held slice to be reported again", remade(&["a"])).await?;
    assert_eq!(status.slices.len(), 1);
    let owners = scene.gpu_nodes.get(NODE).await?.metadata.owner_references.unwrap_or_default();
    assert_eq!(owners.first().map(|owner| owner.kind.as_str()), Some("Node"));
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_offered_once_its_cdi_specification_exists() -> anyhow::Result<()> {
    // A file in the folder's place makes every specification fail.
    let scene = Scene::prepare(h100(), |dir| Ok(std::fs::write(dir.join("cdi"), "no folder")?)).await?;
    scene.until("the agent to serve", GpuNodeStatus::is_ready).await?;
    let pod = scene.create("a", ONE).await?;
    scene.want(vec![scene.wanted("s1", mig("1g.10gb", 0, 1)?, Some((&pod, ONE))).await?]).await?;
    // Before the first failure, the condition says that the file is being made.
    scene.complaint_with(Condition::SPEC_REACHED, "cdi").await?;
    std::fs::remove_file(scene.dir.join("cdi"))?;
    let ready = scene.slice_until("s1", SliceState::Ready).await?;
    let spec = |device: &DeviceId| scene.dir.join("cdi").join(format!("kerf.dev-{device}.json"));
    let first = ready.device.context("no device")?;
    let text = std::fs::read_to_string(spec(&first))?;
    assert!(text.contains(first.as_str()), "{text}");
    scene.want(vec![scene.wanted("s2", mig("7g.80gb", 0, 8)?, None).await?]).await?;
    let bigger = scene.slice_until("s2", SliceState::Idle).await?.device.context("no device")?;
    wait(TIMEOUT, "the old file to go", async || Ok(!spec(&first).exists() && spec(&bigger).exists()))
        .await?;
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_does_not_fight_a_conflicting_gpu_manager() -> anyhow::Result<()> {
    let mut theirs = None;
    let scene = Scene::prepare(h100(), |dir| {
        let folder = dir.join("device-plugins");
        std::fs::create_dir_all(&folder)?;
        theirs = Some(UnixListener::bind(folder.join("nvidia-gpu.sock"))?);
        Ok(())
    })
    .await?;
    let complaint = scene.complaint(Condition::UNCONTESTED).await?;
    assert!(complaint.contains("device plugin") && complaint.contains("nvidia-gpu.sock"), "{complaint}");
    let slice = scene.wanted("s1", mig("1g.10gb", 0, 1)?, None).await?;
    let refused = scene.leader.propose(&slice, &[]).await?;
    assert!(matches!(refused, Err(Rejection::Closed(_))), "{refused:?}");
    assert_eq!(scene.cut()?, Vec::<String>::new());
    assert!(scene.kubelet.healthy_devices().is_empty(), "no name is registered");
    drop(theirs);
    std::fs::remove_file(scene.dir.join("device-plugins/nvidia-gpu.sock"))?;
    scene.want(vec![slice]).await?;
    scene.slice_until("s1", SliceState::Idle).await?;
    scene.stop().await
}
