//! A burst of pods through two replicas of the webhook at once, beyond what the preferred kind of slice has room for.

use anyhow::Context as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, request_of, resource_of, wait};
use kerf_tests::oracle::Truth;
use kube::api::ListParams;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_mins(5);
const MIG: &str = "nvidia.com/mig-1g.10gb";
/// What two H100 have of it.
const MIG_ROOM: usize = 14;
const BURST: usize = 100;
/// How many may be sent to a kind beyond its room: those that one replica admits after a word of the extender's that the other
/// has not heard yet, a few milliseconds.
const FEW: usize = 2;
/// The label by which pods go to the one replica or the other.
const LANE: &str = "lane";
const OTHER: &str = "b";

/// Who waits for a full kind waits on.
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

/// How many pods each replica gave which name.
type Given = BTreeMap<String, BTreeMap<String, usize>>;

fn given(pods: &[Pod]) -> anyhow::Result<Given> {
    let mut given = Given::new();
    for pod in pods {
        let by = request_of(pod)?.admitted_by().context("who admitted it is not told")?.to_owned();
        *given.entry(by).or_default().entry(resource_of(pod)?).or_default() += 1;
    }
    Ok(given)
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
async fn a_burst_through_two_replicas_does_not_wait_for_a_full_kind() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = cluster(&folder).await?;
    let pods: Vec<Pod> = (0..BURST).map(small).collect();
    let made = try_join_all(pods.iter().map(|pod| cluster.create(pod))).await?;

    let given = given(&made)?;
    assert_eq!(given.len(), 2, "{given:?}");
    assert!(given.values().all(|names| names.values().sum::<usize>() == BURST / 2), "{given:?}");
    // The replicas share what was left at the extender's last word.
    let mig: usize = given.values().filter_map(|names| names.get(MIG)).sum();
    let few = mig.saturating_sub(MIG_ROOM);
    assert!(few <= FEW, "{mig} pods were sent to {MIG_ROOM} places: {given:?}");
    for pod in &made {
        let waits = request_of(pod)?.chosen.context("how it was chosen is not recorded")?.waits;
        assert!(waits.is_empty(), "there was room: {waits:?}");
    }
    let bound = wait(PATIENCE, "all others to be bound", async || Ok(waiting(&cluster).await?.len() <= few));
    bound.await.with_context(|| format!("{given:?}"))?;
    for pod in waiting(&cluster).await? {
        assert_eq!(resource_of(&pod)?, MIG);
    }

    let settled = async || Ok(Truth::observe(&cluster).await?.is_settled());
    wait(PATIENCE, "all that are bound to run", settled).await?;
    let truth = Truth::observe(&cluster).await?;
    assert_eq!(truth.count("Running"), BURST - few);
    let wrong = [truth.violations(), truth.unexplained(), promised_wrongly(&cluster).await?].concat();
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    cluster.stop().await
}
