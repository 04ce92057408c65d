//! Whole GPUs of one pod that have NVLinks to each other, from the pod's limit to what its containers see.

use std::collections::BTreeSet;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod};
use kerf_tests::kubelet::PodKey;
use kerf_tests::oracle::Truth;
use serde_json::json;

const NODE: &str = "n";

/// A policy for pods with the label; the shipped policy is for the others, among them the test's probes.
const POLICY: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: whole}
spec:
  match: {labels: {asks: for-whole-gpus}}
  defaultIsolation: memory
  isolation: {memory: [whole]}
  dialects: [nvidia]
---
";

/// A node with two islands of four GPUs: one with even indexes and one with odd ones.
async fn cluster() -> anyhow::Result<Cluster> {
    let policy = tempfile::NamedTempFile::new()?;
    std::fs::write(policy.path(), POLICY.to_owned() + include_str!("../../policies/default.yaml"))?;
    let gpus = MockConfig::new().seed(NODE).gpus(Model::H100, 8, MigMode::Disabled);
    let gpus = gpus.island([0, 2, 4, 6], 6).island([1, 3, 5, 7], 6);
    let mut options = ClusterOptions::without_controller_manager(vec![NodeSpec {
        gpus,
        ..NodeSpec::new(NODE, Model::H100, 0)
    }]);
    options.policy = Some(policy.path().to_owned());
    Cluster::start(options, |_| ()).await
}

/// A pod whose containers `c0`, `c1` and so on ask for these numbers of GPUs.
fn asking(name: &str, counts: &[u32]) -> anyhow::Result<Pod> {
    let mut pod = pod(name, &[]);
    pod.metadata.labels = Some([("asks".to_owned(), "for-whole-gpus".to_owned())].into());
    let container = |(number, count): (usize, &u32)| {
        let limits = json!({"limits": {"nvidia.com/gpu": count.to_string()}});
        json!({"name": format!("c{number}"), "image": "none", "resources": limits})
    };
    let containers: Vec<_> = counts.iter().enumerate().map(container).collect();
    pod.spec.as_mut().context("no spec")?.containers = serde_json::from_value(json!(containers))?;
    Ok(pod)
}

/// The GPUs that a container sees, by their indexes.
fn seen(cluster: &Cluster, pod: &str, container: &str) -> anyhow::Result<BTreeSet<u32>> {
    let node = &cluster.nodes()[0];
    let grant = node.kubelet().grant(&PodKey::new("default", pod), container).context("no grant")?;
    let visible = grant.environment.get("NVIDIA_VISIBLE_DEVICES").context("no device")?;
    let gpus = node.gpus()?.gpus;
    let index = |uuid: &str| gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.index);
    visible.split(',').map(|uuid| index(uuid).with_context(|| format!("{uuid} is no GPU"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_for_several_gpus_get_those_of_one_nvlink_island() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    for (name, counts, expected) in [
        // GPU 1 is free, but belongs to the other island.
        ("two", &[2][..], &[&[0, 2][..]][..]),
        // A pod with one GPU leaves the whole island free.
        ("one", &[1], &[&[4]]),
        ("four", &[4], &[&[1, 3, 5, 7]]),
    ] {
        cluster.create(&asking(name, counts)?).await?;
        cluster.running(name).await?;
        for (number, gpus) in expected.iter().enumerate() {
            let gpus: BTreeSet<u32> = gpus.iter().copied().collect();
            assert_eq!(seen(&cluster, name, &format!("c{number}"))?, gpus, "{name}");
        }
    }
    for name in ["two", "one", "four"] {
        cluster.delete(name).await?;
    }
    // Six GPUs: one island, and a pair of the other. Each container's GPUs are of one island, in whatever order the
    // kubelet allocates.
    cluster.create(&asking("six", &[2, 2, 2])?).await?;
    cluster.running("six").await?;
    for container in ["c0", "c1", "c2"] {
        let parities: BTreeSet<u32> = seen(&cluster, "six", container)?.iter().map(|gpu| gpu % 2).collect();
        assert_eq!(parities.len(), 1, "{container}");
    }
    let status = cluster.gpu_node(NODE).await?.read_status()?.context("no status")?;
    let peers: Vec<_> = status.gpus[1].peers.iter().map(|peer| (peer.index, peer.nvlinks)).collect();
    assert_eq!(peers, [(3, 6), (5, 6), (7, 6)]);
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}
