//! kerf beside DRA. A `DeviceClass` may claim a name that kerf's pods would have (the chart of NVIDIA's DRA driver
//! claims `nvidia.com/gpu`). Then kube-scheduler searches `ResourceSlices` for such devices and skips nodes that have
//! none, whatever the extender answers.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate};
use kerf_core::kind::Kind;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{
    Cluster, ClusterOptions, NodeSpec, limited_pod, request_of, resource_of, root, sized_pod, wait,
};
use kerf_tests::oracle::Truth;
use kerf_tests::pods::assignment_of;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const NEUTRAL: &str = "kerf.dev/gpu-10gb";

/// The shipped policy, with `nvidia.com/gpu` for kerf.
async fn cluster() -> anyhow::Result<Cluster> {
    let folder = tempfile::tempdir()?;
    let policy = folder.path().join("policy.yaml");
    let shipped = std::fs::read_to_string(root().join("policies/default.yaml"))?;
    let with_dialects = shipped.replacen("  # dialects:", "  dialects:", 1);
    ensure!(with_dialects != shipped, "the shipped policy does not offer the dialects");
    std::fs::write(&policy, with_dialects)?;
    let mut options = ClusterOptions::without_controller_manager(vec![NodeSpec::new("h100", Model::H100, 1)]);
    options.policy = Some(policy);
    Cluster::start(options, |_| ()).await
}

fn by_size(name: &str) -> Pod {
    sized_pod(name, "10Gi", "hardware")
}

fn gated(mut pod: Pod) -> Pod {
    let gate = PodSchedulingGate { name: "example.com/later".to_owned() };
    pod.spec.get_or_insert_default().scheduling_gates = Some(vec![gate]);
    pod
}

async fn class(cluster: &Cluster, name: &str, resource: &str) -> anyhow::Result<()> {
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": name}, "spec": {"extendedResourceName": resource},
    });
    cluster.plane().apply(&class.to_string()).await.map(drop)
}

/// Waits until the webhook gives a pod by size this name.
async fn is_named(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let given = async || Ok(resource_of(&cluster.pods().create(&dry_run, &by_size("probe")).await?)? == name);
    wait(TIMEOUT, &format!("pods by size to be given {name}"), given).await
}

async fn runs_on_a_small_instance(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let running = cluster.running(name).await?;
    let assigned = assignment_of(&running)?;
    let shape = assigned.slices.first().context("no slice is assigned")?.shape;
    ensure!(shape.kind() == Kind::Mig && shape.to_string().starts_with("1g.10gb"), "{name} has {shape}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_pod_gets_a_name_that_a_device_class_claims() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    is_named(&cluster, SMALL).await?;
    let early = cluster.create(&gated(by_size("early"))).await?;
    assert_eq!(resource_of(&early)?, SMALL);

    class(&cluster, "mig.example.com", SMALL).await?;
    class(&cluster, "gpu.example.com", "nvidia.com/gpu").await?;
    is_named(&cluster, NEUTRAL).await?;
    // The neutral name avoids this: for a pod with the claimed name kube-scheduler itself skips the only node.
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    cluster.pods().patch("early", &PatchParams::default(), &open).await?;
    cluster.event("early", "0/1 nodes are available").await?;

    let sized = cluster.create(&by_size("sized")).await?;
    let asked = &request_of(&sized)?.containers[0];
    assert_eq!((asked.resource.to_string().as_str(), &asked.kinds[..]), (NEUTRAL, &[Kind::Mig][..]));
    let profiled = cluster.create(&limited_pod("profiled", SMALL, 1)).await?;
    let asked = &request_of(&profiled)?.containers[0];
    assert_eq!(asked.resource.to_string(), NEUTRAL);
    assert_eq!(asked.profile.map(|profile| profile.to_string()).as_deref(), Some("1g.10gb"));
    for name in ["sized", "profiled"] {
        runs_on_a_small_instance(&cluster, name).await?;
    }
    let refused = cluster.refusal(&limited_pod("whole", "nvidia.com/gpu", 1)).await?;
    assert!(refused.contains("gpu.example.com") && refused.contains("nvidia.com/gpu"), "{refused}");
    assert_eq!(cluster.phase("early").await?, "Pending");

    cluster.plane().kubectl(&["delete", "deviceclass", "mig.example.com", "gpu.example.com"]).await?;
    runs_on_a_small_instance(&cluster, "early").await?;
    is_named(&cluster, SMALL).await?;
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}
