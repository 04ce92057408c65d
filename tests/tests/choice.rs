//! Which kind of slice a pod is given: by what has room beside those who wait already.

use anyhow::Context as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodSchedulingGate};
use kerf_core::contract::{Demand, Reason};
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NAMESPACE, NodeSpec, pod, request_of, resource_of, wait};
use kerf_tests::oracle::Truth;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
const MIG: &str = "nvidia.com/mig-1g.10gb";
const MPS: &str = "nvidia.com/gpu-2gb";

/// Memory is fenced by MIG if it has room, else by MPS.
const POLICY: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: choice}
spec:
  defaultIsolation: memory
  isolation: {memory: [mig, mps], none: [time-slicing]}
";

/// An H100, of which MIG makes seven, beside a T4, which has room for seven shares of two GB.
async fn cluster(folder: &tempfile::TempDir) -> anyhow::Result<Cluster> {
    cluster_of(folder, &[("h100", Model::H100), ("t4", Model::T4)]).await
}

/// Nodes with one GPU each.
async fn cluster_of(folder: &tempfile::TempDir, nodes: &[(&str, Model)]) -> anyhow::Result<Cluster> {
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY)?;
    let nodes = nodes.iter().map(|(name, model)| NodeSpec::new(name, *model, 1));
    let mut options = ClusterOptions::new(nodes.collect());
    options.control_plane.controller_manager = false;
    options.policy = Some(policy);
    Cluster::start(options, |_| ()).await
}

fn small(name: &str) -> Pod {
    pod(name, &[(keys::GPU_MEMORY, "2Gi"), (keys::ISOLATION, "memory")])
}

async fn pending(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, u32>> {
    let api = Api::<ConfigMap>::namespaced(cluster.plane().client(), NAMESPACE);
    let data = api.get(keys::DEMAND).await?.data.unwrap_or_default();
    let demand = Demand::parse(data.get(keys::DEMAND_DOCUMENT).context("no demand is published")?)?;
    Ok(demand.pending.into_iter().map(|(name, count)| (name.to_string(), count)).collect())
}

async fn sound(cluster: &Cluster) -> anyhow::Result<()> {
    let violations = Truth::observe(cluster).await?.violations();
    anyhow::ensure!(violations.is_empty(), "{}", violations.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_spread_over_the_kinds_that_have_room() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = cluster(&folder).await?;
    let pods: Vec<Pod> = (0..12).map(|number| small(&format!("p{number}"))).collect();
    let made = try_join_all(pods.iter().map(|pod| cluster.create(pod))).await?;
    let mut given: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &made {
        *given.entry(resource_of(pod)?).or_default() += 1;
    }
    // MIG has room for seven. It may be fewer: until the extender's next word a pod counts as admitted and as promised.
    let of = |name: &str| given.get(name).copied().unwrap_or_default();
    assert!((1..=7).contains(&of(MIG)) && of(MIG) + of(MPS) == 12, "{given:?}");
    for pod in made.iter().filter(|pod| resource_of(pod).is_ok_and(|name| name == MPS)) {
        let passed = request_of(pod)?.chosen.context("how it was chosen is not recorded")?.passed;
        assert!(
            matches!(passed[..], [ref mig] if matches!(mig.reason, Reason::Full { resource, .. } if resource.to_string() == MIG)),
            "{passed:?}"
        );
    }
    for pod in &pods {
        cluster.running(pod.metadata.name.as_deref().unwrap_or_default()).await?;
    }
    wait(PATIENCE, "nobody to wait", async || Ok(pending(&cluster).await?.is_empty())).await?;
    sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn room_of_a_cordoned_node_attracts_nobody() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = cluster_of(&folder, &[("h1", Model::H100), ("h2", Model::H100), ("t4", Model::T4)]).await?;
    // Of equal nodes the first by name.
    cluster.create(&pod("whole", &[(keys::GPU_MEMORY, "80Gi"), (keys::ISOLATION, "memory")])).await?;
    let whole = cluster.running("whole").await?;
    assert_eq!(whole.spec.and_then(|spec| spec.node_name).as_deref(), Some("h1"));
    let mut early = small("early");
    early.spec.get_or_insert_default().scheduling_gates =
        Some(vec![PodSchedulingGate { name: "example.com/later".to_owned() }]);
    assert_eq!(resource_of(&cluster.create(&early).await?)?, MIG);

    cluster.cordon("h2", true).await?;
    assert_eq!(resource_of(&cluster.create(&small("new")).await?)?, MPS);
    cluster.running("new").await?;
    let later = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    cluster.pods().patch("early", &PatchParams::default(), &later).await?;
    cluster.cordon("h2", false).await?;
    cluster.running("early").await?;
    sound(&cluster).await?;
    cluster.stop().await
}
