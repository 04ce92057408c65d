//! A burst of pods through two replicas of the webhook at once, beyond the capacity of the preferred kind of slice. As
//! many as fit get that kind, and the others the next kind.

use anyhow::Context as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, resource_of, wait};
use kerf_tests::oracle::Truth;
use kerf_tests::pods::assignment_of;
use kube::api::{ListParams, PostParams};
use std::collections::BTreeMap;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(5);
const NEUTRAL: &str = "kerf.dev/gpu-2gb";
/// The MIG slices that two H100 have.
const MIG_ROOM: usize = 14;
const BURST: usize = 100;
/// The label that decides which of the two replicas gets a pod.
const LANE: &str = "lane";
const OTHER: &str = "b";

const POLICY: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: burst}
spec:
  defaultIsolation: none
  isolation: {none: [mig, mps]}
";

/// Two H100, which MIG cuts into fourteen, beside three H200 that are shared.
async fn cluster(folder: &tempfile::TempDir) -> anyhow::Result<Cluster> {
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY)?;
    let shared = MockConfig::new().seed("shared").gpus(Model::H200, 3, MigMode::Disabled);
    let shared = NodeSpec { gpus: shared, ..NodeSpec::new("shared", Model::T4, 0) };
    let mut options =
        ClusterOptions::without_controller_manager(vec![NodeSpec::new("h100", Model::H100, 2), shared]);
    options.policy = Some(policy);
    let mut cluster = Cluster::start(options, |_| ()).await?;
    cluster.add_webhook((LANE, OTHER)).await?;
    Ok(cluster)
}

fn small(number: usize) -> Pod {
    let mut pod = pod(&format!("p{number}"), &[(keys::GPU_MEMORY, "2Gi")]);
    let lane = if number.is_multiple_of(2) { "a" } else { OTHER };
    pod.metadata.labels = Some([(LANE.to_owned(), lane.to_owned())].into());
    pod
}

/// The kinds of all pods' slices, each with the kinds that were passed over, and the number of pods.
async fn kinds(cluster: &Cluster) -> anyhow::Result<BTreeMap<(Kind, Vec<Kind>), usize>> {
    let mut kinds = BTreeMap::new();
    for pod in cluster.pods().list(&ListParams::default()).await?.items {
        let document = assignment_of(&pod)?;
        let passed = document.passed.iter().map(|passed| passed.kind).collect();
        let kind = document.slices.first().context("no slice")?.shape.kind();
        *kinds.entry((kind, passed)).or_insert(0) += 1;
    }
    Ok(kinds)
}

/// Slices that two pods have reserved, and pods that have reserved another number than one.
async fn reserved_wrongly(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let (mut devices, mut pods) = (BTreeMap::new(), BTreeMap::new());
    for node in cluster.nodes() {
        let object = cluster.gpu_node(node.name()).await?;
        let reservations = object.read_desired()?.slices.into_iter().filter_map(|slice| slice.reservation);
        for reservation in reservations {
            *pods.entry(format!("{} has a reservation", reservation.pod)).or_insert(0) += 1;
        }
        for slice in object.read_status()?.map(|status| status.slices).unwrap_or_default() {
            if let (Some(device), true) = (slice.device, slice.ready_for.is_some()) {
                *devices.entry(format!("{device:?} of {} is reserved", node.name())).or_insert(0) += 1;
            }
        }
    }
    let wrong = |(what, count): (String, u32)| (count != 1).then(|| format!("{what} {count} times"));
    Ok(devices.into_iter().chain(pods).filter_map(wrong).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_pods_as_fit_get_the_first_kind_and_none_is_pending() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = cluster(&folder).await?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let pods: Vec<Pod> = (0..BURST).map(small).collect();
    for lane in &pods[..2] {
        let is_neutral = async || Ok(resource_of(&cluster.pods().create(&dry_run, lane).await?)? == NEUTRAL);
        wait(TIMEOUT, "both replicas to observe both kinds", is_neutral).await?;
    }
    try_join_all(pods.iter().map(|pod| cluster.create(pod))).await?;
    let run = async || {
        let truth = Truth::observe(&cluster).await?;
        Ok(truth.is_settled() && truth.count("Running") == BURST)
    };
    wait(TIMEOUT, "all pods to run", run).await?;

    let given = kinds(&cluster).await?;
    let expected = [((Kind::Mig, vec![]), MIG_ROOM), ((Kind::Mps, vec![Kind::Mig]), BURST - MIG_ROOM)];
    assert_eq!(given, expected.into());
    let truth = Truth::observe(&cluster).await?;
    let wrong = [truth.violations(), truth.unexplained(), reserved_wrongly(&cluster).await?].concat();
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    cluster.stop().await
}
