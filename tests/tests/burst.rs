//! A burst of pods through two replicas of the webhook at once, beyond what the preferred kind of slice has room for.

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, resource_of, wait};
use kerf_tests::oracle::Truth;
use kube::api::ListParams;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(5);
/// What an H100 serves by MIG and an H200 by MPS.
const NEUTRAL: &str = "kerf.dev/gpu-2gb";
/// What two H100 have by MIG.
const MIG_ROOM: usize = 14;
const BURST: usize = 100;
/// The label by which pods go to the one replica or the other.
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

/// Two H100, of which MIG makes fourteen, beside three H200 that are shared.
async fn cluster(folder: &tempfile::TempDir) -> anyhow::Result<Cluster> {
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY)?;
    let shared = MockConfig::new().seed("shared").gpus(Model::H200, 3, MigMode::Disabled);
    let shared = NodeSpec { gpus: shared, ..NodeSpec::new("shared", Model::T4, 0) };
    let mut options = ClusterOptions::new(vec![NodeSpec::new("h100", Model::H100, 2), shared]);
    options.control_plane.controller_manager = false;
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

/// The pods that no node was found for.
async fn waiting(cluster: &Cluster) -> anyhow::Result<Vec<Pod>> {
    let mut pods = cluster.pods().list(&ListParams::default()).await?.items;
    pods.retain(|pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()));
    Ok(pods)
}

/// Slices that two pods were promised, or pods that were promised other than one.
async fn promised_wrongly(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let (mut devices, mut pods) = (BTreeMap::new(), BTreeMap::new());
    for node in cluster.nodes() {
        let object = cluster.gpu_node(node.name()).await?;
        let promised = object.read_spec()?.slices.into_iter().filter_map(|slice| slice.reservation);
        for reservation in promised {
            *pods.entry(format!("{} was promised", reservation.pod)).or_insert(0) += 1;
        }
        for slice in object.read_status()?.map(|status| status.slices).unwrap_or_default() {
            if let (Some(device), true) = (slice.device, slice.ready_for.is_some()) {
                *devices.entry(format!("{device:?} of {} is promised", node.name())).or_insert(0) += 1;
            }
        }
    }
    let wrong = |(what, count): (String, u32)| (count != 1).then(|| format!("{what} {count} times"));
    Ok(devices.into_iter().chain(pods).filter_map(wrong).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_through_two_replicas_fills_one_kind_and_goes_on_to_the_next() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = cluster(&folder).await?;
    let pods: Vec<Pod> = (0..BURST).map(small).collect();
    for made in try_join_all(pods.iter().map(|pod| cluster.create(pod))).await? {
        assert_eq!(resource_of(&made)?, NEUTRAL);
    }
    wait(PATIENCE, "all to be bound", async || Ok(waiting(&cluster).await?.is_empty())).await?;
    let settled = async || Ok(Truth::observe(&cluster).await?.is_settled());
    wait(PATIENCE, "all to run", settled).await?;
    let truth = Truth::observe(&cluster).await?;
    assert_eq!(truth.count("Running"), BURST);
    let pods = cluster.pods().list(&ListParams::default()).await?.items;
    let on_mig = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some("h100"));
    assert_eq!(pods.iter().filter(on_mig).count(), MIG_ROOM, "the preferred kind is full");
    let wrong = [truth.violations(), truth.unexplained(), promised_wrongly(&cluster).await?].concat();
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    cluster.stop().await
}
