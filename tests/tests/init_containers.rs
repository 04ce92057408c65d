//! Pods with init containers, a sidecar and several app containers, through all phases on a real control plane.
//!
//! The kubelet never lists what an ordinary init container holds, but no other pod may get it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{SliceState, WantedSlice};
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, wait};
use kerf_tests::kubelet::PodKey;
use kerf_tests::oracle::Truth;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);
const NAME: &str = "nvidia.com/mig-1g.10gb";

async fn cluster() -> anyhow::Result<Cluster> {
    let options = ClusterOptions::without_controller_manager(vec![
        NodeSpec::new("h", Model::H100, 1).running_commands(),
    ]);
    Cluster::start(options, |_| ()).await
}

/// A container that asks for slices of 10 GB, and runs until a file of its name is in `gates`.
fn until_opened(gates: &Path, name: &str, count: u32) -> Value {
    let gate = gates.join(name).display().to_string();
    let script = format!("while [ ! -e {gate} ]; do sleep 0.02; done");
    let mut container = asking(name, count);
    container["command"] = json!(["/bin/sh", "-c", script]);
    container
}

fn for_ever(name: &str, count: u32) -> Value {
    let mut container = asking(name, count);
    container["command"] = json!(["/bin/sleep", "1000"]);
    container
}

fn asking(name: &str, count: u32) -> Value {
    json!({"name": name, "image": "none", "resources": {"limits": {"kerf.dev/gpu-10gb": count.to_string()}}})
}

fn pod(name: &str, inits: &[Value], apps: &[Value]) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"initContainers": inits, "containers": apps, "terminationGracePeriodSeconds": 0},
    }))?)
}

/// The devices of a pod's containers, by the kubelet's own account.
fn devices(cluster: &Cluster, pod: &str) -> BTreeSet<String> {
    let held = cluster.nodes()[0].kubelet().allocations().remove(&PodKey::new("default", pod));
    held.and_then(|mut names| names.remove(NAME)).unwrap_or_default()
}

/// What a container sees of the GPU.
fn visible(cluster: &Cluster, pod: &str, container: &str) -> BTreeSet<String> {
    let grant = cluster.nodes()[0].kubelet().grant(&PodKey::new("default", pod), container);
    let visible = grant.and_then(|grant| grant.environment.get("NVIDIA_VISIBLE_DEVICES").cloned());
    visible.into_iter().flat_map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// The slices that are reserved for a pod, once the status shows `count`. The status is written a moment after the
/// agent has decided.
async fn slices_of(cluster: &Cluster, pod: &str, count: usize) -> anyhow::Result<Vec<WantedSlice>> {
    let is_its = |slice: &WantedSlice| slice.reservation.as_ref().is_some_and(|r| r.pod == pod);
    let reserved = async || {
        let slices = cluster.gpu_node("h").await?.read_desired()?.slices;
        anyhow::Ok(slices.into_iter().filter(is_its).collect::<Vec<_>>())
    };
    let shown = async || Ok(reserved().await?.len() == count);
    wait(TIMEOUT, &format!("{count} slices of {pod} in the status"), shown).await?;
    reserved().await
}

/// Waits until an init container of the pod runs.
async fn init_runs(cluster: &Cluster, pod: &str, init: &str) -> anyhow::Result<()> {
    let runs = async || {
        let status = cluster.pods().get(pod).await?.status.unwrap_or_default();
        let inits = status.init_container_statuses.unwrap_or_default();
        let running = |s: &k8s_openapi::api::core::v1::ContainerStatus| {
            s.name == init && s.state.as_ref().is_some_and(|state| state.running.is_some())
        };
        Ok(inits.iter().any(running))
    };
    wait(TIMEOUT, &format!("{init} of {pod} to run"), runs).await
}

/// The number of slices that a pod holds in the agent's status.
async fn held_by(cluster: &Cluster, pod: &str) -> anyhow::Result<usize> {
    let status = cluster.gpu_node("h").await?.read_status()?.unwrap_or_default();
    let held = status.slices.iter().filter(|s| s.state == SliceState::Held);
    Ok(held.filter(|s| s.holder.as_ref().is_some_and(|h| h.pod == pod)).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_holds_its_slices_from_its_first_init_container_to_its_end() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    let gates = tempfile::tempdir()?;
    let open = |name: &str| std::fs::write(gates.path().join(name), "").context("failed to open a gate");
    let mut proxy = for_ever("proxy", 1);
    proxy["restartPolicy"] = json!("Always");
    // Four beside the sidecar are five; the sidecar and the two apps are three.
    let inits = [until_opened(gates.path(), "fetch", 1), proxy, until_opened(gates.path(), "load", 4)];
    cluster.create(&pod("staged", &inits, &[for_ever("one", 1), for_ever("two", 1)])?).await?;
    init_runs(&cluster, "staged", "fetch").await?;
    let mine = devices(&cluster, "staged");
    assert_eq!(mine.len(), 5, "the most that it needs at any time");
    slices_of(&cluster, "staged", 5).await?;

    // Two of seven are left, so the third rival is pending through all phases.
    for name in ["rival-1", "rival-2", "rival-3"] {
        cluster.create(&pod(name, &[], &[for_ever("main", 1)])?).await?;
    }
    cluster.running("rival-1").await?;
    cluster.running("rival-2").await?;
    cluster.event("rival-3", "GPU slices in use").await?;
    let apart = |cluster: &Cluster| {
        ["rival-1", "rival-2"].iter().all(|rival| devices(cluster, rival).is_disjoint(&mine))
    };
    assert!(apart(&cluster));
    Truth::ensure_sound(&cluster).await?;

    open("fetch")?;
    init_runs(&cluster, "staged", "load").await?;
    assert_eq!(visible(&cluster, "staged", "load").len(), 4);
    wait(TIMEOUT, "the agent to report all holders", async || Ok(held_by(&cluster, "staged").await? == 5))
        .await?;
    // The next agent has no memory of what was allocated. After three seconds an allocation that the kubelet does not
    // list would count as old.
    cluster.nodes_mut()[0].agent().kill()?;
    cluster.nodes_mut()[0].agent().restart()?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    wait(TIMEOUT, "the agent to report them again", async || Ok(held_by(&cluster, "staged").await? == 5))
        .await?;
    cluster.delete("rival-2").await?;
    cluster.running("rival-3").await?;
    assert!(devices(&cluster, "rival-3").is_disjoint(&mine));
    Truth::ensure_sound(&cluster).await?;

    open("load")?;
    cluster.running("staged").await?;
    let (one, two, proxy) = (
        visible(&cluster, "staged", "one"),
        visible(&cluster, "staged", "two"),
        visible(&cluster, "staged", "proxy"),
    );
    let lasting: BTreeSet<String> = [&one, &two, &proxy].into_iter().flatten().cloned().collect();
    assert!(lasting.len() == 3 && lasting.is_subset(&mine), "{lasting:?} of {mine:?}");
    let slices = slices_of(&cluster, "staged", 5).await?;
    let mut containers: Vec<_> =
        slices.iter().filter_map(|s| Some(s.reservation.as_ref()?.container.as_str())).collect();
    containers.sort_unstable();
    assert_eq!(containers, ["load", "load", "one", "proxy", "two"], "they stay the pod's until it ends");
    assert_eq!(devices(&cluster, "staged"), mine);

    cluster.create(&pod("rival-4", &[], &[for_ever("main", 5)])?).await?;
    cluster.event("rival-4", "GPU slices in use").await?;
    cluster.delete("staged").await?;
    cluster.running("rival-4").await?;
    slices_of(&cluster, "staged", 0).await?;
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_whose_init_containers_need_more_slices_start_and_end_together() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        let (mut load, mut main) = (asking("load", 2), asking("main", 1));
        load["command"] = json!(["/bin/sleep", "0.5"]);
        main["command"] = json!(["/bin/sleep", "2"]);
        let mut pod = pod(name, &[load], &[main])?;
        pod.spec.as_mut().context("the pod has no spec")?.restart_policy = Some("Never".to_owned());
        cluster.create(&pod).await?;
    }
    for name in names {
        let done = async || {
            Truth::ensure_sound(&cluster).await?;
            Ok(matches!(cluster.phase(name).await?.as_str(), "Succeeded" | "Failed"))
        };
        wait(Duration::from_mins(1), &format!("{name} to end"), done).await?;
        assert_eq!(cluster.phase(name).await?, "Succeeded");
    }
    let free = async || {
        let spec = cluster.gpu_node("h").await?.read_desired()?;
        Ok(spec.slices.iter().all(|s| s.reservation.is_none()))
    };
    wait(TIMEOUT, "nothing to be reserved", free).await?;
    Truth::ensure_sound(&cluster).await?;
    goes_on_with_a_larger_slice(&cluster).await?;
    cluster.stop().await
}

/// A container of 10 GB keeps the slice of 20 GB that its init container gives back.
async fn goes_on_with_a_larger_slice(cluster: &Cluster) -> anyhow::Result<()> {
    let gates = tempfile::tempdir()?;
    let mut load = until_opened(gates.path(), "load", 1);
    load["resources"] = json!({"limits": {"kerf.dev/gpu-20gb": "1"}});
    cluster.create(&pod("levelled", &[load], &[for_ever("main", 1)])?).await?;
    init_runs(cluster, "levelled", "load").await?;
    slices_of(cluster, "levelled", 1).await?;
    std::fs::write(gates.path().join("load"), "").context("failed to open a gate")?;
    cluster.running("levelled").await?;
    slices_of(cluster, "levelled", 1).await?;
    assert_eq!(visible(cluster, "levelled", "main"), visible(cluster, "levelled", "load"));
    Truth::ensure_sound(cluster).await
}

/// A restarted kubelet admits its pods again. It ends a pod whose init container had a device, unless all its devices
/// are healthy by then. The real kubelet waits a second before it asks for pods.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_offers_held_slices_before_a_restarted_kubelet_admits_its_pods_again() -> anyhow::Result<()>
{
    let cluster = cluster().await?;
    let mut load = asking("load", 1);
    load["command"] = json!(["/bin/true"]);
    cluster.create(&pod("one", &[load], &[for_ever("main", 1)])?).await?;
    cluster.running("one").await?;
    let held = devices(&cluster, "one");
    let kubelet = cluster.nodes()[0].kubelet();
    kubelet.hold_pods_back(true);
    kubelet.restart().await?;
    let offered =
        async || Ok(kubelet.healthy_devices().get(NAME).is_some_and(|healthy| held.is_subset(healthy)));
    wait(TIMEOUT, "what is held to be offered again", offered).await?;
    kubelet.hold_pods_back(false);
    cluster.create(&pod("two", &[], &[for_ever("main", 1)])?).await?;
    cluster.running("two").await?;
    assert_eq!(kubelet.failed_admissions(), []);
    assert_eq!((cluster.phase("one").await?, devices(&cluster, "one")), ("Running".to_owned(), held));
    cluster.stop().await
}
