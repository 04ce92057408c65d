//! Slices are cut as they are desired, reported in time, and kept over restarts.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kerf_core::contract::{GpuNodeStatus, SliceState, WantedSlice};
use kerf_core::ledger::{NodeState, Rejection};
use kerf_core::names::{DeviceId, PodUid, SliceId};
use kerf_nvml_mock::{Fault, MigMode, MockConfig, MockControl, MockState, Model, NvmlCode, Process};
use kerf_tests::cluster::wait;
use kerf_tests::stand_in_leader::reservation;
use kube::Api;
use kube::api::DeleteParams;

use crate::node_agent::scene::{NODE, ONE, Scene, TIMEOUT, h100, mig};

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_is_cut_at_its_place_and_its_pod_gets_that_device() -> anyhow::Result<()> {
    let scene = Scene::start(h100()).await?;
    let status = scene.status().await?;
    assert_eq!(status.gpus[0].model, "H100-80GB");
    assert_eq!(status.gpus[0].profiles.entries().len(), 7);
    assert_eq!(status.summary.free, "79Gi");
    assert_eq!(scene.kubelet.healthy_devices().len(), 30, "all names are registered, with no device");

    let pod = scene.create("a", ONE).await?;
    scene.want(vec![scene.wanted("s1", mig("1g.10gb", 4, 1)?, Some((&pod, ONE))).await?]).await?;
    let ready = scene.slice_until("s1", SliceState::Ready).await?;
    assert_eq!(ready.ready_for.as_ref().map(PodUid::as_str), pod.metadata.uid.as_deref());
    assert_eq!(scene.cut()?, ["1g.10gb at 4"]);
    scene.run("a").await?;
    assert_eq!(scene.visible("a").as_deref(), ready.device.as_ref().map(DeviceId::as_str));
    let held = scene.slice_until("s1", SliceState::Held).await?;
    assert_eq!(held.holder.map(|h| h.pod).as_deref(), Some("a"));

    let nodes = Api::<Node>::all(scene.plane.client());
    let node = nodes.get(NODE).await?;
    let labels = node.metadata.labels.unwrap_or_default();
    assert_eq!(labels["kerf.dev/gpu-model"], "H100-80GB");
    assert_eq!((&*labels["kerf.dev/mig-max-gb"], &*labels["kerf.dev/gpu-max-gb"]), ("80", "80"));
    wait(TIMEOUT, "the node's status to show the device", async || {
        let status = nodes.get(NODE).await?.status.unwrap_or_default();
        Ok(status.allocatable.unwrap_or_default().get(ONE).is_some_and(|q| q.0 == "1"))
    })
    .await?;

    scene.pods().delete("a", &DeleteParams::default()).await?;
    scene.slice_until("s1", SliceState::Idle).await?;
    scene.want(vec![scene.wanted("s2", mig("3g.40gb", 4, 4)?, None).await?]).await?;
    scene.slice_until("s2", SliceState::Idle).await?;
    assert_eq!(scene.cut()?, ["3g.40gb at 4"]);
    assert!(scene.kubelet.failed_admissions().is_empty());
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_become_ready_one_after_the_other() -> anyhow::Result<()> {
    let gpus = MockConfig::new().seed(NODE).gpus(Model::H100, 8, MigMode::Enabled);
    let scene = Scene::start(gpus).await?;
    let status = scene.status().await?;
    let mut slices = Vec::new();
    for n in 0..40 {
        let pod = scene.create(&format!("p{n}"), ONE).await?;
        let gpu = status.gpus[n / 7].uuid.clone();
        let id = format!("s{}", n + 1);
        let shape = mig("1g.10gb", u8::try_from(n % 7)?, 1)?;
        let reservation = Some(reservation(&pod, ONE)?);
        slices.push(WantedSlice { id: SliceId::new(&id), gpu, shape, reservation });
        scene.want(slices.clone()).await?;
        let id = SliceId::new(id);
        let is_ready =
            |node: &NodeState| node.status.slice(&id).is_some_and(|slice| slice.state == SliceState::Ready);
        scene.leader.until("the slice to be ready", is_ready).await?;
        scene.run(&format!("p{n}")).await?;
    }
    assert!(scene.kubelet.failed_admissions().is_empty());
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_and_a_restarted_kubelet_restore_their_state() -> anyhow::Result<()> {
    let mut scene = Scene::start(h100()).await?;
    let pod = scene.create("a", ONE).await?;
    let held = scene.wanted("s1", mig("1g.10gb", 0, 1)?, Some((&pod, ONE))).await?;
    scene.want(vec![held.clone()]).await?;
    scene.slice_until("s1", SliceState::Ready).await?;
    scene.run("a").await?;
    let device = scene.slice_until("s1", SliceState::Held).await?.device;

    // An agent that is stopped in order reports it; a killed one cannot.
    scene.agent.terminate(Duration::from_secs(5))?;
    let status = scene.until("the agent to say that it stops", |status| !status.is_ready()).await?;
    assert_eq!(status.conditions[0].reason, "AgentStopped");
    assert_eq!(status.slices[0].holder.as_ref().map(|h| h.pod.as_str()), Some("a"));
    scene.start_agent().await?;
    scene.until("the agent to serve again", GpuNodeStatus::is_ready).await?;
    scene.agent.kill()?;
    let next = scene.create("b", ONE).await?;
    scene.start_agent().await?;
    scene.want(vec![held, scene.wanted("s2", mig("1g.10gb", 1, 1)?, Some((&next, ONE))).await?]).await?;
    scene.slice_until("s2", SliceState::Ready).await?;
    assert_eq!(scene.slice_until("s1", SliceState::Held).await?.device, device);

    scene.kubelet.restart().await?;
    scene.serves_again().await?;
    scene.slice_until("s2", SliceState::Ready).await?;
    scene.run("b").await?;
    assert_eq!(scene.cut()?, ["1g.10gb at 0", "1g.10gb at 1"]);
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_was_just_started_and_lists_no_pod_yet_frees_nothing() -> anyhow::Result<()> {
    let scene = Scene::start(h100()).await?;
    scene.hold(&[], ("s1", mig("1g.10gb", 0, 1)?), ("a", ONE)).await?;
    // The place is desired for another slice, and the kubelet is in the state of the moment after its start.
    scene.kubelet.hold_pods_back(true);
    scene.kubelet.restart().await?;
    let bigger = scene.wanted("s2", mig("7g.80gb", 0, 8)?, None).await?;
    scene.serves_again().await?;
    let is_taken = async || {
        let refused = scene.leader.propose(&bigger, &[]).await?;
        anyhow::ensure!(matches!(refused, Err(Rejection::Taken(_))), "{refused:?}");
        Ok(())
    };
    is_taken().await?;
    let asked = async |more: u64| {
        let enough = scene.kubelet.list_calls() + more;
        wait(TIMEOUT, "the kubelet to be asked", async || Ok(scene.kubelet.list_calls() >= enough)).await
    };
    asked(3).await?;
    assert_eq!(scene.cut()?, ["1g.10gb at 0"]);
    let held = scene.slice_until("s1", SliceState::Held).await?;
    assert_eq!(held.holder.map(|h| h.pod).as_deref(), Some("a"));
    assert_eq!(scene.kubelet.healthy_devices()[ONE].len(), 1, "its container may be started again");

    scene.kubelet.hold_pods_back(false);
    asked(3).await?;
    is_taken().await?;
    assert_eq!(scene.cut()?, ["1g.10gb at 0"]);
    scene.pods().delete("a", &DeleteParams::default()).await?;
    scene.want(vec![bigger]).await?;
    scene.slice_until("s2", SliceState::Idle).await?;
    assert_eq!(scene.cut()?, ["7g.80gb at 0"], "the pod has ended");
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nvmls_errors_are_reported_verbatim_and_leave_nothing_behind() -> anyhow::Result<()> {
    let scene = Scene::start(h100()).await?;
    // The compute instance is refused once: the GPU instance is destroyed again, and the second try succeeds.
    let once = Fault::new("nvmlGpuInstanceCreateComputeInstance", NvmlCode::INSUFFICIENT_RESOURCES).times(1);
    MockControl::new().fault(once).write(&scene.files.control)?;
    scene.want(vec![scene.wanted("s1", mig("1g.10gb", 0, 1)?, None).await?]).await?;
    scene.slice_until("s1", SliceState::Idle).await?;
    assert_eq!(scene.cut()?, ["1g.10gb at 0"]);

    let always = Fault::new("nvmlDeviceCreateGpuInstanceWithPlacement", NvmlCode::INSUFFICIENT_RESOURCES);
    MockControl::new().fault(always).write(&scene.files.control)?;
    let pod = scene.create("a", "nvidia.com/mig-3g.40gb").await?;
    let both = vec![
        scene.wanted("s1", mig("1g.10gb", 0, 1)?, None).await?,
        scene.wanted("s2", mig("3g.40gb", 4, 4)?, Some((&pod, "nvidia.com/mig-3g.40gb"))).await?,
    ];
    scene.want(both).await?;
    let words = scene.given_up("s2").await?;
    let expected = "nvmlDeviceCreateGpuInstanceWithPlacement answered INSUFFICIENT_RESOURCES";
    assert!(words.contains(expected), "{words}");
    scene.leader.until("it to be taken back", |node| node.status.slices.len() == 1).await?;
    assert_eq!(scene.cut()?, ["1g.10gb at 0"]);

    // A process runs on the idle slice, so the slice stays, whatever is desired in its place.
    let gi = MockState::load(&scene.files.state)?.gpus[0].instances[0].id;
    MockControl::new().process(Process::on_instance(4711, 0, gi, 100)).write(&scene.files.control)?;
    let bigger = scene.wanted("s3", mig("7g.80gb", 0, 8)?, None).await?;
    // The agent accepts it if it has not yet looked for processes, and then drops it.
    let accepted = scene.leader.propose(&bigger, &[]).await?.is_ok();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(scene.cut()?, ["1g.10gb at 0"]);
    let is_gone = |node: &NodeState| node.status.slice(&bigger.id).is_none();
    scene.leader.until("it to be given up", is_gone).await?;
    MockControl::new().write(&scene.files.control)?;
    let id = if accepted { "s4" } else { "s3" };
    scene.want(vec![WantedSlice { id: SliceId::new(id), ..bigger }]).await?;
    scene.slice_until(id, SliceState::Idle).await?;
    assert_eq!(scene.cut()?, ["7g.80gb at 0"]);
    scene.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_bypassed_the_scheduler_gets_no_slice() -> anyhow::Result<()> {
    let scene = Scene::start(h100()).await?;
    scene.want(vec![scene.wanted("s1", mig("1g.10gb", 0, 1)?, None).await?]).await?;
    scene.slice_until("s1", SliceState::Idle).await?;
    scene.create("thief", ONE).await?;
    let error = format!("{:#}", scene.run("thief").await.unwrap_err());
    assert!(error.contains("no healthy devices present"), "{error}");
    scene.event("NoSliceForPod", "thief").await?;
    assert_eq!(scene.slice_until("s1", SliceState::Idle).await?.holder, None);
    scene.stop().await
}
