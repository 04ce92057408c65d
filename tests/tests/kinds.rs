//! GPUs of one node that are cut in different ways at once, as an admin configures it in the GpuNode's policy.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{GpuNodeStatus, NodePolicy, SliceState, WantedSlice};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kerf_tests::cluster::{
    Cluster, ClusterOptions, NodeSpec, limited_pod, pod, resource_of, sized_pod, wait, with_limit,
};
use kerf_tests::kubelet::{Grant, PodKey};
use kerf_tests::oracle::Truth;
use kerf_tests::pods::assignment_of;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const NODE: &str = "k";
const TIMEOUT: Duration = Duration::from_secs(30);

/// The node's GPUs by their index.
const H100: usize = 0;
const T4: usize = 1;
const L4: usize = 2;
const H200: usize = 3;

/// A policy for pods that ask as for HAMi. The others have the shipped policy.
const HAMI: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: hami}
spec:
  match: {labels: {asks: as-hami}}
  defaultIsolation: none
  isolation: {none: [mps, time-slicing, mig]}
  dialects: [hami]
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
---
";

/// A cluster of one node with GPUs of four models, the first of which is in MIG mode.
async fn cluster() -> anyhow::Result<Cluster> {
    let policy = tempfile::NamedTempFile::new()?;
    std::fs::write(policy.path(), HAMI.to_owned() + include_str!("../../policies/default.yaml"))?;
    let gpus = MockConfig::new()
        .seed(NODE)
        .gpus(Model::H100, 1, MigMode::Enabled)
        .gpus(Model::T4, 1, MigMode::Disabled)
        .gpus(Model::L4, 1, MigMode::Disabled)
        .gpus(Model::H200, 1, MigMode::Disabled);
    let mut options = ClusterOptions::without_controller_manager(vec![NodeSpec {
        gpus,
        ..NodeSpec::new(NODE, Model::T4, 0)
    }]);
    options.policy = Some(policy.path().to_owned());
    Cluster::start(options, |_| ()).await
}

/// Sets the node's policy as an admin does, and waits until the agent reports that its GPUs have these kinds.
async fn set_policy(cluster: &Cluster, policy: &Value, kinds: [&[Kind]; 4]) -> anyhow::Result<()> {
    // Fields that the admin does not mention must go, and a merge would leave them.
    let patch = json!([{"op": "add", "path": "/spec/policy", "value": policy}]).to_string();
    cluster.plane().kubectl(&["patch", "gpunode", NODE, "--type=json", "--patch", &patch]).await?;
    let applied = async || Ok(status(cluster).await?.gpus.iter().map(|gpu| &gpu.kinds[..]).eq(kinds));
    wait(TIMEOUT, &format!("the GPUs to have the kinds {kinds:?}"), applied).await
}

fn rule(index: usize, kinds: &[Kind]) -> Value {
    // The simulated GPUs are four buses apart, from 1b on.
    json!({"select": {"pciBusIds": [format!("00000000:{:02X}:00.0", 0x1b + 4 * index)]}, "kinds": kinds})
}

async fn status(cluster: &Cluster) -> anyhow::Result<GpuNodeStatus> {
    cluster.gpu_node(NODE).await?.read_status()?.context("the GpuNode has no status")
}

fn grant(cluster: &Cluster, pod: &str) -> anyhow::Result<Grant> {
    let grant = cluster.nodes()[0].kubelet().grant(&PodKey::new("default", pod), "main");
    grant.with_context(|| format!("{pod} got nothing"))
}

/// What the pod's container sees: a GPU or a MIG device.
fn visible(cluster: &Cluster, pod: &str) -> anyhow::Result<String> {
    let visible = grant(cluster, pod)?.environment.get("NVIDIA_VISIBLE_DEVICES").cloned();
    visible.with_context(|| format!("{pod} sees no device"))
}

fn uuid(cluster: &Cluster, gpu: usize) -> anyhow::Result<String> {
    Ok(cluster.nodes()[0].gpus()?.gpus[gpu].uuid.clone())
}

fn mig_devices(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    Ok(cluster.nodes()[0].gpus()?.slices().into_iter().flat_map(|slice| slice.mig_uuids).collect())
}

/// The GPUs of a pod's assigned slices. They must be those that its GpuNode has reserved for it.
async fn assigned(cluster: &Cluster, pod: &Pod) -> anyhow::Result<BTreeSet<String>> {
    let document = assignment_of(pod)?;
    let assigned: Vec<_> = document.slices.iter().map(|slice| (&slice.id, &slice.gpu)).collect();
    let is_for = |slice: &&WantedSlice| {
        slice.reservation.as_ref().is_some_and(|r| Some(r.uid.as_str()) == pod.metadata.uid.as_deref())
    };
    // The pod may run before its node's status is written.
    let is_reported = async || {
        let spec = cluster.gpu_node(NODE).await?.read_desired()?;
        Ok(spec
            .slices
            .iter()
            .filter(is_for)
            .map(|slice| (&slice.id, &slice.gpu))
            .eq(assigned.iter().copied()))
    };
    wait(TIMEOUT, &format!("{assigned:?} to be reported as reserved"), is_reported).await?;
    Ok(assigned.into_iter().map(|(_, gpu)| gpu.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_gpu_of_a_node_is_cut_as_its_policy_requires() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let gpus = [
        rule(H100, &[Kind::Mig]),
        rule(T4, &[Kind::Mps]),
        rule(L4, &[Kind::TimeSlicing]),
        rule(H200, &[Kind::Whole, Kind::TimeSlicing]),
    ];
    let mixed = [&[Kind::Mig][..], &[Kind::Mps], &[Kind::TimeSlicing], &[Kind::Whole, Kind::TimeSlicing]];
    set_policy(&cluster, &json!({"gpus": gpus}), mixed).await?;

    let mps = with_limit(pod("mps", &[(keys::ISOLATION, "memory")]), "nvidia.com/gpu-8gb", 1);
    for pod in [
        sized_pod("mig", "10Gi", "hardware"),
        mps,
        sized_pod("slice", "6Gi", "none"),
        sized_pod("big-slice", "40Gi", "none"),
    ] {
        cluster.create(&pod).await?;
    }
    for name in ["mig", "mps", "slice", "big-slice"] {
        cluster.running(name).await?;
    }
    assert!(mig_devices(&cluster)?.contains(&visible(&cluster, "mig")?));
    let limit = grant(&cluster, "mps")?.environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").cloned();
    assert_eq!(limit.as_deref(), Some("0=8192M"));
    for (pod, gpu) in [("mps", T4), ("slice", L4), ("big-slice", H200)] {
        assert_eq!(visible(&cluster, pod)?, uuid(&cluster, gpu)?, "{pod}");
    }

    // In HAMi's words the pod asks for two GPUs. It gets a time slice of each, although MPS is preferred and the T4 has
    // room, because only one GPU has MPS shares.
    let two = [uuid(&cluster, L4)?, uuid(&cluster, H200)?];
    let names = ["two", "two-more"];
    for name in names {
        let mut pod = pod(name, &[]);
        pod.metadata.labels = Some([("asks".to_owned(), "as-hami".to_owned())].into());
        let main = &mut pod.spec.get_or_insert_default().containers[0];
        main.resources = Some(serde_json::from_value(
            json!({"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"}}),
        )?);
        assert_eq!(resource_of(&cluster.create(&pod).await?)?, "nvidia.com/gpu-4gb.shared");
    }
    for name in names {
        let running = cluster.running(name).await?;
        assert_eq!(assigned(&cluster, &running).await?, BTreeSet::from(two.clone()), "{name}");
        let visible = visible(&cluster, name)?;
        assert_eq!(
            visible.split(',').map(str::to_owned).collect::<BTreeSet<_>>(),
            BTreeSet::from(two.clone())
        );
    }
    Truth::ensure_sound(&cluster).await?;
    for name in names {
        cluster.delete(name).await?;
    }

    // More than any MIG profile of the cluster has: the pod gets a whole GPU once the share is gone, whatever the
    // policy has become.
    cluster.create(&sized_pod("whole", "100Gi", "hardware")).await?;
    cluster.event("whole", "GPU slices in use").await?;
    let gpus = [&gpus[..3], &[rule(H200, &[Kind::Whole])]].concat();
    let policy = json!({"gpus": gpus, "overUse": "evict"});
    set_policy(&cluster, &policy, [&[Kind::Mig], &[Kind::Mps], &[Kind::TimeSlicing], &[Kind::Whole]]).await?;
    assert_eq!(cluster.phase("big-slice").await?, "Running", "who has a slice keeps it");
    assert_eq!(cluster.phase("whole").await?, "Pending");
    cluster.delete("big-slice").await?;
    cluster.running("whole").await?;
    assert_eq!(visible(&cluster, "whole")?, uuid(&cluster, H200)?);
    cluster.create(&sized_pod("late-slice", "40Gi", "none")).await?;
    cluster.running("late-slice").await?;
    assert!(
        mig_devices(&cluster)?.contains(&visible(&cluster, "late-slice")?),
        "no GPU has time slices of that size"
    );

    // A pod that the webhook did not admit but that names kerf's scheduler gets an Event that says so, and no GPU that
    // is reserved for others.
    let mut others = limited_pod("others", "nvidia.com/gpu", 1);
    others.spec.get_or_insert_default().scheduler_name = Some("kerf-scheduler".to_owned());
    cluster.create(&others).await?;
    cluster.event("others", "pod was not admitted by kerf's webhook").await?;

    let written = cluster.gpu_node(NODE).await?.spec.context("the GpuNode has no spec")?;
    assert_eq!(written["policy"], policy, "kerf's writes leave it alone");
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_are_cut_ahead_of_demand_so_a_pod_needs_no_cut() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let policy = json!({"warm": [{"resource": "nvidia.com/mig-1g.10gb", "count": 2}]});
    let shared = [Kind::Whole, Kind::Mps, Kind::TimeSlicing];
    set_policy(&cluster, &policy, [&[Kind::Mig], &shared, &shared, &shared]).await?;
    let idle = async |count: usize| {
        let idle = async || {
            let slices = status(&cluster).await?.slices;
            Ok(slices.iter().filter(|slice| slice.state == SliceState::Idle).count() == count)
        };
        wait(TIMEOUT, &format!("{count} idle slices"), idle).await
    };
    idle(2).await?;
    let warm = mig_devices(&cluster)?;
    assert_eq!(warm.len(), 2);
    cluster.create(&sized_pod("small", "10Gi", "hardware")).await?;
    cluster.running("small").await?;
    let taken = visible(&cluster, "small")?;
    assert!(warm.contains(&taken), "{taken} is none of {warm:?}");
    idle(2).await?;
    assert_eq!(mig_devices(&cluster)?.len(), 3, "another was cut in its place");

    cluster.create(&sized_pod("big", "40Gi", "hardware")).await?;
    cluster.create(&sized_pod("big-too", "30Gi", "hardware")).await?;
    cluster.running("big").await?;
    cluster.event("big-too", "GPU slices in use").await?;
    cluster.delete("small").await?;
    cluster.running("big-too").await?;
    idle(0).await?;
    assert_eq!(
        cluster.gpu_node(NODE).await?.read_desired()?.policy,
        serde_json::from_value::<NodePolicy>(policy)?
    );
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}
