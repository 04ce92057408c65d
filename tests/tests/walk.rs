//! A pod's whole way on a real control plane: request, reservation, cut, running, release.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use kerf_core::contract::SliceState;
use kerf_nvml_mock::{Fault, MockControl, Model, NvmlCode};
use kerf_tests::churn::{Churn, Settled};
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, limited_pod, sized_pod, wait};
use kerf_tests::kubelet::PodKey;
use kerf_tests::oracle::Truth;
use kerf_tests::pods::assignment_of;

const TIMEOUT: Duration = Duration::from_secs(30);

async fn cluster(nodes: Vec<NodeSpec>) -> anyhow::Result<Cluster> {
    Cluster::start(ClusterOptions::without_controller_manager(nodes), |_| ()).await
}

/// The devices that the kubelet makes visible to the pod's container.
fn visible(cluster: &Cluster, node: usize, pod: &str) -> Option<String> {
    let grant = cluster.nodes()[node].kubelet().grant(&PodKey::new("default", pod), "main")?;
    grant.environment.get("NVIDIA_VISIBLE_DEVICES").cloned()
}

/// How many requests the API server has dispatched by this `FlowSchema`.
async fn dispatched(cluster: &Cluster, schema: &str) -> anyhow::Result<f64> {
    let metrics = cluster.plane().kubectl(&["get", "--raw", "/metrics"]).await?;
    let own = format!("flow_schema=\"{schema}\"");
    let counts = metrics.lines().filter(|line| {
        line.starts_with("apiserver_flowcontrol_dispatched_requests_total{") && line.contains(&own)
    });
    let counts = counts.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
    Ok(counts.sum::<Result<f64, _>>()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn bindings_and_the_lease_have_their_own_priority_levels() -> anyhow::Result<()> {
    let cluster = cluster(vec![NodeSpec::new("h", Model::H100, 1)]).await?;
    // The API server applies a new schema only after a moment, so earlier requests would count for another one.
    wait(TIMEOUT, "the schemas to be in force", async || {
        Ok(dispatched(&cluster, "kerf-extender-lease").await? > 0.0)
    })
    .await?;
    let before = dispatched(&cluster, "kerf-extender").await?;
    cluster.create(&limited_pod("cut", "gpu-10gb", 1)).await?;
    cluster.running("cut").await?;
    let bound = dispatched(&cluster, "kerf-extender").await? - before;
    anyhow::ensure!(bound >= 1.0, "its Binding went another way");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_the_slice_that_was_cut_for_it() -> anyhow::Result<()> {
    let cluster = cluster(vec![NodeSpec::new("h", Model::H100, 1)]).await?;
    cluster.create(&limited_pod("cut", "gpu-10gb", 1)).await?;
    let pod = cluster.running("cut").await?;
    let assignment = assignment_of(&pod)?;
    let slices = cluster.nodes()[0].gpus()?.slices();
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].profile, "1g.10gb");
    assert_eq!(visible(&cluster, 0, "cut").as_ref(), slices[0].mig_uuids.first());
    assert_eq!(assignment.slices[0].gpu.as_str(), slices[0].gpu_uuid);

    // The pod is gone: its slice stays as idle capacity, and the next pod of this size gets that very slice.
    cluster.delete("cut").await?;
    let idle = async || {
        let slices = cluster.gpu_node("h").await?.read_status()?.unwrap_or_default().slices;
        Ok(slices.len() == 1 && slices[0].state == SliceState::Idle)
    };
    wait(TIMEOUT, "the slice to be idle", idle).await?;
    cluster.create(&sized_pod("again", "10Gi", "hardware")).await?;
    cluster.running("again").await?;
    assert_eq!(visible(&cluster, 0, "again").as_ref(), slices[0].mig_uuids.first());
    assert_eq!(cluster.nodes()[0].gpus()?.slices(), slices);
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_slices_make_room_for_a_bigger_one_and_held_ones_stay() -> anyhow::Result<()> {
    let cluster = cluster(vec![NodeSpec::new("h", Model::H100, 1)]).await?;
    let names: Vec<String> = (0..7).map(|n| format!("small-{n}")).collect();
    for name in &names {
        cluster.create(&sized_pod(name, "10Gi", "hardware")).await?;
        cluster.running(name).await?;
    }
    cluster.create(&sized_pod("big", "40Gi", "hardware")).await?;
    let message = cluster.event("big", "GPU slices in use").await?;
    assert!(message.contains("0/1 nodes are available"), "{message}");

    let upper: Vec<&String> = names.iter().filter(|n| is_in_upper_half(&cluster, n)).collect();
    let staying: BTreeSet<String> =
        names.iter().filter(|n| !upper.contains(n)).filter_map(|n| visible(&cluster, 0, n)).collect();
    assert_eq!(upper.len(), 3);
    for name in upper {
        cluster.delete(name).await?;
    }
    cluster.running("big").await?;
    let slices = cluster.nodes()[0].gpus()?.slices();
    let there: BTreeSet<String> = slices.iter().flat_map(|s| s.mig_uuids.clone()).collect();
    assert!(staying.is_subset(&there), "held slices {staying:?} are not all in {there:?}");
    assert!(slices.iter().any(|s| s.profile == "3g.40gb" && s.placement.start == 4), "{slices:?}");
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

fn is_in_upper_half(cluster: &Cluster, pod: &str) -> bool {
    let device = visible(cluster, 0, pod);
    let slices = cluster.nodes()[0].gpus().map(|g| g.slices()).unwrap_or_default();
    slices.iter().any(|s| s.placement.start >= 4 && s.mig_uuids.first() == device.as_ref())
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_of_a_gpu_without_mig_are_accounted_by_memory() -> anyhow::Result<()> {
    let cluster = cluster(vec![NodeSpec::new("t", Model::T4, 1)]).await?;
    for name in ["a", "b"] {
        cluster.create(&sized_pod(name, "7Gi", "none")).await?;
        cluster.running(name).await?;
    }
    cluster.create(&sized_pod("c", "7Gi", "none")).await?;
    cluster.event("c", "GPU slices in use").await?;
    cluster.create(&sized_pod("fenced", "1Gi", "memory")).await?;
    cluster.event("fenced", "GPU slices in use").await?;
    cluster.delete("a").await?;
    cluster.running("c").await?;
    cluster.delete("b").await?;
    cluster.delete("c").await?;
    cluster.running("fenced").await?;
    let grant =
        cluster.nodes()[0].kubelet().grant(&PodKey::new("default", "fenced"), "main").context("no grant")?;
    assert_eq!(
        grant.environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").map(String::as_str),
        Some("0=1024M")
    );
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_cut_ends_the_request_but_not_the_reservation() -> anyhow::Result<()> {
    let cluster = cluster(vec![NodeSpec::new("h", Model::H100, 1)]).await?;
    let slow = MockControl::new().delay("nvmlDeviceCreateGpuInstanceWithPlacement", Duration::from_secs(6));
    cluster.nodes()[0].control(&slow)?;
    cluster.create(&sized_pod("slow", "10Gi", "hardware")).await?;
    cluster.event("slow", "the reservation stays").await?;
    let spec = cluster.gpu_node("h").await?.read_desired()?;
    assert!(spec.slices.iter().any(|s| s.reservation.as_ref().is_some_and(|r| r.pod == "slow")), "{spec:?}");
    cluster.running("slow").await?;
    let after = cluster.gpu_node("h").await?.read_desired()?;
    assert_eq!(after.slices, spec.slices, "the pod runs on the slice that was reserved first");
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_goes_while_its_slice_is_cut_leaves_it_idle() -> anyhow::Result<()> {
    let cluster = cluster(vec![NodeSpec::new("h", Model::H100, 1)]).await?;
    let slow = MockControl::new().delay("nvmlDeviceCreateGpuInstanceWithPlacement", Duration::from_secs(2));
    cluster.nodes()[0].control(&slow)?;
    cluster.create(&sized_pod("gone", "10Gi", "hardware")).await?;
    let reserved = async || Ok(!cluster.gpu_node("h").await?.read_desired()?.slices.is_empty());
    wait(TIMEOUT, "the reservation", reserved).await?;
    cluster.delete("gone").await?;
    let idle = async || {
        let node = cluster.gpu_node("h").await?;
        let status = node.read_status()?.unwrap_or_default();
        let free = node.read_desired()?.slices.iter().all(|s| s.reservation.is_none());
        Ok(free && status.slices.len() == 1 && status.slices[0].state == SliceState::Idle)
    };
    wait(TIMEOUT, "the slice to be cut and idle", idle).await?;
    assert!(
        cluster.nodes()[0].kubelet().healthy_devices().values().all(BTreeSet::is_empty),
        "an idle slice is offered"
    );
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_another_gpu_if_the_first_rejects_the_cut() -> anyhow::Result<()> {
    let cluster = cluster(vec![NodeSpec::new("h", Model::H100, 2)]).await?;
    let refuse =
        Fault::new("nvmlDeviceCreateGpuInstanceWithPlacement", NvmlCode::INSUFFICIENT_RESOURCES).times(3);
    cluster.nodes()[0].control(&MockControl::new().fault(refuse))?;
    cluster.create(&sized_pod("stubborn", "10Gi", "hardware")).await?;
    cluster.running("stubborn").await?;
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn random_creates_and_deletes_never_break_an_invariant() -> anyhow::Result<()> {
    let cluster = cluster(ClusterOptions::demo_nodes()).await?;
    let mut churn = Churn::new(7);
    for round in 0..40 {
        let settled = churn.round(&cluster).await?;
        assert_eq!(settled, Settled::Sound, "round {round}");
    }
    cluster.stop().await
}
