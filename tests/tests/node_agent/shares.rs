//! Shares: MPS daemons, memory by process, GPUs that are shared otherwise.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kerf_core::contract::{Shape, SliceState};
use kerf_core::ledger::Rejection;
use kerf_core::units::SizeGb;
use kerf_nvml_mock::{MigMode, MockConfig, MockState, Model, Process};
use kerf_tests::cluster::wait;
use kerf_tests::kubelet::PodKey;
use kerf_tests::mps::{MpsStandIn, Orders, ServerFault};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use crate::node_agent::scene::{NODE, Scene, TIMEOUT, run};

const FOUR: &str = "nvidia.com/gpu-4gb";

fn t4() -> MockConfig {
    MockConfig::new().seed(NODE).gpus(Model::T4, 1, MigMode::Disabled)
}

fn mps(gb: u32) -> Shape {
    Shape::mps(SizeGb(gb))
}

/// The process id of the MPS daemon of the node's first GPU.
async fn daemon(scene: &Scene) -> anyhow::Result<u32> {
    let folder = scene.dir.join("mps").join(scene.gpu().await?.as_str());
    let text = std::fs::read_to_string(folder.join("daemon.pid"))?;
    Ok(text.split_whitespace().next().context("no pid")?.parse()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_are_served_with_their_limits() -> anyhow::Result<()> {
    let scene = Scene::start(t4()).await?;
    let name = "nvidia.com/gpu-4gb";
    let pod = scene.create("a", name).await?;
    let shape = Shape::mps(SizeGb(4));
    scene.want(vec![scene.wanted("s1", shape, Some((&pod, name))).await?]).await?;
    scene.slice_until("s1", SliceState::Ready).await?;
    scene.run("a").await?;
    let grant = scene.kubelet.grant(&PodKey::new("default", "a"), "main").context("no grant")?;
    let gpu = scene.gpu().await?;
    assert_eq!(grant.environment["NVIDIA_VISIBLE_DEVICES"], gpu.as_str());
    assert_eq!(grant.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=4096M");
    assert_eq!(grant.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "26");
    let pipe = scene.dir.join("mps").join(gpu.as_str()).join("pipe");
    assert_eq!(grant.environment["CUDA_MPS_PIPE_DIRECTORY"], pipe.display().to_string());
    let held = scene.slice_until("s1", SliceState::Held).await?;
    assert_eq!(held.device.map(|d| d.as_str().to_owned()), Some(format!("{gpu}::1")));
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_outlives_its_agent_and_a_dead_one_is_restarted() -> anyhow::Result<()> {
    let mut scene = Scene::start(t4()).await?;
    let (_, held) = scene.hold(&[], ("s1", mps(4)), ("a", FOUR)).await?;
    let first = daemon(&scene).await?;
    scene.agent.kill()?;
    scene.start_agent().await?;
    scene.until("the agent to serve again", kerf_core::contract::GpuNodeStatus::is_ready).await?;
    assert_eq!(daemon(&scene).await?, first, "its clients run on");

    let (_, bigger) =
        scene.hold(std::slice::from_ref(&held), ("s2", mps(8)), ("b", "nvidia.com/gpu-8gb")).await?;
    assert_eq!(daemon(&scene).await?, first);

    let killed = std::process::Command::new("kill").args(["-9", &first.to_string()]).status()?;
    assert!(killed.success());
    scene.event("MpsRestarted", "a").await?;
    scene.event("MpsRestarted", "b").await?;
    assert_ne!(daemon(&scene).await?, first);
    scene.want(vec![held.clone(), bigger]).await?;
    scene.pods().delete("b", &DeleteParams::default()).await?;
    scene.want(vec![held.clone()]).await?;
    scene.hold(&[held], ("s3", mps(2)), ("c", "nvidia.com/gpu-2gb")).await?;
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_an_event_about_a_fault_of_their_server() -> anyhow::Result<()> {
    let scene = Scene::start(t4()).await?;
    scene.hold(&[], ("s1", mps(4)), ("a", FOUR)).await?;
    let first = daemon(&scene).await?;
    let stand_in = MpsStandIn::below(scene.dir.join("mps"));
    let gpu = scene.gpu().await?;
    let server_fault = Some(ServerFault::UntilShutDown);
    stand_in.order(gpu.as_str(), Orders { server_fault, clients: [7001].into(), ..Orders::default() })?;
    let note = scene.event("MpsRestarted", "a").await?;
    assert!(note.contains("fault"), "{note}");
    assert_eq!(daemon(&scene).await?, first);
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_used_outside_kerf_is_reported_and_not_offered() -> anyhow::Result<()> {
    let scene = Scene::start(t4()).await?;
    scene.show_process(4711, "python3", None)?;
    scene.happen(|control| control.process(Process::on_gpu(4711, 0, 3000)))?;
    let status = scene.until("the memory to be reported", |s| s.gpus[0].outside.0 == 3072).await?;
    assert_eq!(status.gpus[0].memory.0, 15_360);
    let note = scene.event("OutsideMemory", NODE).await?;
    assert!(note.contains("python3") && note.contains("4711"), "{note}");
    let pod = scene.create("a", "nvidia.com/gpu-14gb").await?;
    let slice = scene.wanted("s1", mps(14), Some((&pod, "nvidia.com/gpu-14gb"))).await?;
    let Err(Rejection::Taken(why)) = scene.leader.propose(&slice, &[]).await? else {
        anyhow::bail!("it is not refused")
    };
    assert!(why.contains("memory does not suffice"), "{why}");
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_exceeds_its_share_gets_an_event_and_is_evicted_if_policy_requires_it()
-> anyhow::Result<()> {
    let scene = Scene::start(t4()).await?;
    let (pod, _) = scene.hold(&[], ("s1", mps(4)), ("a", FOUR)).await?;
    scene.show_process(42, "train", Some(&pod))?;
    scene.happen(|control| control.process(Process::on_gpu(42, 0, 6000)))?;
    let note = scene.event("GpuMemoryOverUse", "a").await?;
    assert!(note.contains("6000Mi") && note.contains("4096Mi"), "{note}");
    assert!(scene.pods().get_opt("a").await?.is_some_and(|p| p.metadata.deletion_timestamp.is_none()));
    scene.set_policy(&json!({"overUse": "evict"})).await?;
    wait(TIMEOUT, "the pod to be evicted", async || Ok(scene.pods().get_opt("a").await?.is_none())).await?;
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capable_driver_limits_the_memory_of_a_time_slices_pod() -> anyhow::Result<()> {
    let mut scene = Scene::start(t4().driver_version("615.10.01")).await?;
    scene.set_policy(&json!({"gpus": [{"timeSlicing": {"memoryLimits": true}}]})).await?;
    let name = "nvidia.com/gpu-4gb.shared";
    let shape = Shape::TimeSlicing { size_gb: SizeGb(4) };
    let (pod, _) = scene.hold(&[], ("s1", shape), ("a", name)).await?;
    scene.show_process(42, "train", Some(&pod))?;
    let uid = pod.metadata.uid.clone().context("no UID")?;
    let cgroup = scene.dir.join(format!("cgroup/kubepods/besteffort/pod{uid}"));
    std::fs::create_dir_all(&cgroup)?;
    let process = Process::on_gpu(42, 0, 100).in_cgroup(cgroup.display().to_string());
    scene.happen(|control| control.process(process))?;
    let state = scene.files.state.clone();
    let limits = || anyhow::Ok(MockState::load(&state)?.gpus[0].memory_limits.clone());
    wait(TIMEOUT, "the limit to be set", async || Ok(!limits()?.is_empty())).await?;
    assert!(format!("{:?}", limits()?).contains(&uid), "{:?}", limits()?);
    assert!(format!("{:?}", limits()?).contains(&(4_u64 << 30).to_string()), "{:?}", limits()?);
    // The pod ends while no agent runs. The next agent's checkpoint says which limits to lift.
    scene.agent.kill()?;
    scene.happen(|mut control| {
        control.processes.clear();
        control
    })?;
    scene.pods().delete("a", &DeleteParams::default()).await?;
    scene.start_agent().await?;
    wait(TIMEOUT, "the limit to be lifted", async || Ok(limits()?.is_empty())).await?;
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uninstalled_agent_reverts_its_settings_and_keeps_held_slices() -> anyhow::Result<()> {
    let gpus = MockConfig::new().seed(NODE).gpus(Model::T4, 2, MigMode::Disabled);
    let mut scene = Scene::start(gpus).await?;
    scene.set_policy(&json!({"gpus": [{"mps": {"exclusive": true}}]})).await?;
    let (_, held) = scene.hold(&[], ("s1", mps(4)), ("a", FOUR)).await?;
    let mut idle = scene.wanted("s2", mps(4), None).await?;
    idle.gpu = scene.status().await?.gpus[1].uuid.clone();
    scene.want(vec![held, idle]).await?;
    scene.slice_until("s2", SliceState::Idle).await?;
    let modes = || {
        anyhow::Ok(
            MockState::load(&scene.files.state)?.gpus.iter().map(|g| g.compute_mode).collect::<Vec<_>>(),
        )
    };
    wait(TIMEOUT, "both GPUs to be exclusive", async || Ok(modes()? == [3, 3])).await?;
    let first = daemon(&scene).await?;
    scene.agent.terminate(Duration::from_secs(5))?;
    assert_eq!(modes()?, [3, 3], "clients go on without the agent");

    let mut leaving =
        run(&scene.plane, &scene.dir, &scene.files, ["leave", "--settle", "1s"].map(Into::into).to_vec())
            .await?;
    wait(TIMEOUT * 2, "the agent to have left", async || {
        let ended = leaving.exited()?;
        anyhow::ensure!(ended.is_none_or(|status| status.success()), "{}", leaving.log_tail());
        Ok(ended.is_some())
    })
    .await?;
    assert_eq!(daemon(&scene).await?, first, "the share that is held has its daemon");
    assert_eq!(std::fs::read_dir(scene.dir.join("mps"))?.count(), 1, "the other daemon is gone");
    assert_eq!(std::fs::read_dir(scene.dir.join("cdi"))?.count(), 1, "and the other file");
    assert!(["ledger.0", "ledger.1"].iter().all(|name| !scene.dir.join("state").join(name).exists()));
    let node = Api::<Node>::all(scene.plane.client()).get(NODE).await?;
    let labels = node.metadata.labels.unwrap_or_default();
    assert!(!labels.keys().any(|label| label.starts_with("kerf.dev/")), "{labels:?}");
    scene.kubelet.stop().await;
    scene.plane.stop().await
}
