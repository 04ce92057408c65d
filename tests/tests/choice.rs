//! Which kind of slice a pod gets where several may serve it: the first of its policy's order that is free on a node which the
//! scheduler offers, chosen when the pod is scheduled.

use anyhow::Context as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_core::contract::AssignmentDocument;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, resource_of};
use kerf_tests::oracle::Truth;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// What an H100 serves by MIG and a T4 by MPS.
const NEUTRAL: &str = "kerf.dev/gpu-2gb";

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
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, POLICY)?;
    let nodes = [("h100", Model::H100), ("t4", Model::T4)];
    let nodes = nodes.map(|(name, model)| NodeSpec::new(name, model, 1).with_label("zone", name));
    let mut options = ClusterOptions::new(nodes.into());
    options.control_plane.controller_manager = false;
    options.policy = Some(policy);
    Cluster::start(options, |_| ()).await
}

/// A pod of two GB with this spec beside its container.
fn small(name: &str, spec: Value) -> anyhow::Result<Pod> {
    let mut value = serde_json::to_value(pod(name, &[(keys::GPU_MEMORY, "2Gi")]))?;
    value["metadata"]["labels"] = json!({"app": "choice"});
    if let (Some(own), Value::Object(more)) = (value["spec"].as_object_mut(), spec) {
        own.extend(more);
    }
    Ok(serde_json::from_value(value)?)
}

/// The kind that a pod has, by its assignment, once it runs.
async fn kind_of(cluster: &Cluster, name: &str) -> anyhow::Result<Kind> {
    let running = cluster.running(name).await?;
    let annotations = running.metadata.annotations.unwrap_or_default();
    let text = annotations.get(keys::ASSIGNMENT).context("no assignment")?;
    let assignment: AssignmentDocument = serde_json::from_str(text)?;
    Ok(assignment.slices.first().context("no slice")?.shape.kind())
}

/// The kind that a new pod gets.
async fn given(cluster: &Cluster, name: &str, spec: Value) -> anyhow::Result<Kind> {
    let made = cluster.create(&small(name, spec)?).await?;
    anyhow::ensure!(resource_of(&made)? == NEUTRAL, "{:?}", resource_of(&made));
    kind_of(cluster, name).await
}

async fn taint(cluster: &Cluster, taints: Value) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(cluster.plane().client());
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    nodes.patch("h100", &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn sound(cluster: &Cluster) -> anyhow::Result<()> {
    let violations = Truth::observe(cluster).await?.violations();
    anyhow::ensure!(violations.is_empty(), "{}", violations.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_fills_one_kind_and_goes_on_to_the_next() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = cluster(&folder).await?;
    let names: Vec<String> = (0..12).map(|number| format!("p{number}")).collect();
    let pods = names.iter().map(|name| small(name, json!({}))).collect::<anyhow::Result<Vec<_>>>()?;
    for made in try_join_all(pods.iter().map(|pod| cluster.create(pod))).await? {
        assert_eq!(resource_of(&made)?, NEUTRAL);
    }
    let mut mig = 0;
    for name in &names {
        mig += usize::from(kind_of(&cluster, name).await? == Kind::Mig);
    }
    assert_eq!(mig, 7);
    sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tainted_kind_is_passed_over_at_once() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = cluster(&folder).await?;
    taint(&cluster, json!([{"key": "dedicated", "value": "prod", "effect": "NoSchedule"}])).await?;
    assert_eq!(given(&cluster, "tainted", json!({})).await?, Kind::Mps);
    let tolerations = json!([{"key": "dedicated", "operator": "Exists"}]);
    assert_eq!(given(&cluster, "tolerant", json!({"tolerations": tolerations})).await?, Kind::Mig);
    taint(&cluster, json!(null)).await?;
    assert_eq!(given(&cluster, "zone", json!({"nodeSelector": {"zone": "t4"}})).await?, Kind::Mps);
    let selector = json!({"labelSelector": {"matchLabels": {"app": "choice"}}, "topologyKey": "zone"});
    cluster.delete("tainted").await?;
    cluster.delete("zone").await?;
    let apart = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [selector]}});
    assert_eq!(given(&cluster, "apart", json!({"affinity": apart})).await?, Kind::Mps);
    sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_without_cpu_is_passed_over_at_once() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let cluster = cluster(&folder).await?;
    let node = Api::<Node>::all(cluster.plane().client()).get("h100").await?;
    let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
    let cpu = allocatable.get("cpu").context("the node has no CPU")?.0.clone();
    let mut all = pod("all-cpu", &[]);
    if let Some(spec) = &mut all.spec {
        spec.node_selector = Some([("zone".to_owned(), "h100".to_owned())].into());
        spec.containers[0].resources = serde_json::from_value(json!({"requests": {"cpu": cpu}}))?;
    }
    cluster.create(&all).await?;
    cluster.running("all-cpu").await?;
    let mut needy = small("needy", json!({}))?;
    if let Some(spec) = &mut needy.spec {
        spec.containers[0].resources = serde_json::from_value(json!({"requests": {"cpu": "100m"}}))?;
    }
    cluster.create(&needy).await?;
    assert_eq!(kind_of(&cluster, "needy").await?, Kind::Mps);
    sound(&cluster).await?;
    cluster.stop().await
}
