//! Pods that take turns on a MIG device.

use anyhow::{Context as _, ensure};
use kerf_core::contract::SliceState;
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, limited_pod, pod, wait, with_limit};
use kerf_tests::kubelet::PodKey;
use kerf_tests::oracle::Truth;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NODE: &str = "n";
const SHARED: &str = "nvidia.com/mig-1g.10gb.shared";
const TIMEOUT: Duration = Duration::from_secs(30);

/// The MIG device that a pod's container sees.
fn visible(cluster: &Cluster, pod: &str) -> anyhow::Result<String> {
    let grant = cluster.nodes()[0].kubelet().grant(&PodKey::new("default", pod), "main");
    let environment = grant.with_context(|| format!("{pod} got nothing"))?.environment;
    ensure!(!environment.keys().any(|name| name.starts_with("CUDA_MPS_")), "{environment:?}");
    environment.get("NVIDIA_VISIBLE_DEVICES").cloned().with_context(|| format!("{pod} sees no device"))
}

/// The devices that pods hold by the kubelet's account, and their pods.
fn held(cluster: &Cluster) -> BTreeMap<String, String> {
    let allocations = cluster.nodes()[0].kubelet().allocations();
    let of_pod = |(pod, devices): (PodKey, BTreeMap<String, BTreeSet<String>>)| {
        devices.into_values().flatten().map(move |device| (device, pod.name.clone())).collect::<Vec<_>>()
    };
    allocations.into_iter().flat_map(of_pod).collect()
}

/// The same in the agent's status.
async fn reported(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    let status = cluster.gpu_node(NODE).await?.read_status()?.context("no status")?;
    let held = status.slices.into_iter().filter(|slice| slice.state == SliceState::Held);
    Ok(held.filter_map(|slice| Some((slice.device?.to_string(), slice.holder?.pod))).collect())
}

fn mig_devices(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    Ok(cluster.nodes()[0].gpus()?.slices().into_iter().flat_map(|slice| slice.mig_uuids).collect())
}

async fn cluster() -> anyhow::Result<Cluster> {
    let options = ClusterOptions::without_controller_manager(vec![NodeSpec::new(NODE, Model::H100, 1)]);
    let cluster = Cluster::start(options, |_| ()).await?;
    let policy = json!({"gpus": [{"kinds": ["mig"], "mig": {"timeSlicing": 3}}]});
    let patch = json!([{"op": "add", "path": "/spec/policy", "value": policy}]).to_string();
    cluster.plane().kubectl(&["patch", "gpunode", NODE, "--type=json", "--patch", &patch]).await?;
    Ok(cluster)
}

#[tokio::test(flavor = "multi_thread")]
async fn three_pods_share_a_mig_device_that_is_destroyed_after_the_last() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    let fenced = with_limit(pod("fenced", &[(keys::ISOLATION, "memory")]), SHARED, 1);
    let refusal = cluster.refusal(&fenced).await?;
    ensure!(refusal.contains("does not give isolation memory"), "{refusal}");

    for name in ["a", "b", "c", "d"] {
        cluster.create(&limited_pod(name, SHARED, 1)).await?;
        cluster.running(name).await?;
    }
    let [first, second] = ["a", "d"].map(|pod| visible(&cluster, pod));
    let (first, second) = (first?, second?);
    for pod in ["b", "c"] {
        assert_eq!(visible(&cluster, pod)?, first, "{pod}");
    }
    assert_eq!(mig_devices(&cluster)?, BTreeSet::from([first.clone(), second.clone()]));
    let before = held(&cluster);
    let turns = ["a", "b", "c"].into_iter().enumerate().map(|(turn, pod)| (format!("{first}::{turn}"), pod));
    let expected = turns.chain([(format!("{second}::0"), "d")]);
    assert_eq!(before, expected.map(|(device, pod)| (device, pod.to_owned())).collect());
    Truth::ensure_sound(&cluster).await?;

    // A restarted agent must restore which pod has which turn, so it is killed with pods on both devices.
    cluster.nodes_mut()[0].agent().kill()?;
    cluster.nodes_mut()[0].agent().restart()?;
    cluster.create(&limited_pod("e", SHARED, 1)).await?;
    cluster.running("e").await?;
    assert_eq!(visible(&cluster, "e")?, second);
    let mut after = before;
    after.insert(format!("{second}::1"), "e".to_owned());
    assert_eq!(held(&cluster), after);
    wait(TIMEOUT, "the agent to report all turns", async || Ok(reported(&cluster).await? == after)).await?;

    cluster.create(&limited_pod("big", "nvidia.com/mig-7g.80gb", 1)).await?;
    for name in ["a", "d", "b", "e"] {
        cluster.delete(name).await?;
    }
    let is_last = async || Ok(reported(&cluster).await?.into_values().eq(["c".to_owned()]));
    wait(TIMEOUT, "one turn to be left", is_last).await?;
    assert_eq!(cluster.phase("big").await?, "Pending");
    assert!(mig_devices(&cluster)?.contains(&first));
    assert_eq!(visible(&cluster, "c")?, first);
    Truth::ensure_sound(&cluster).await?;
    cluster.delete("c").await?;
    cluster.running("big").await?;
    assert_eq!(mig_devices(&cluster)?, BTreeSet::from([visible(&cluster, "big")?]));
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}
