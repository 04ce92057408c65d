//! Bad input, through the real API server: each gets an answer that names the field and the remedy, and nothing else is
//! disturbed.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, wait};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

async fn cluster() -> anyhow::Result<Cluster> {
    let mut options = ClusterOptions::new(vec![NodeSpec::new("h", Model::H100, 1)]);
    options.control_plane.controller_manager = false;
    Cluster::start(options, |_| ()).await
}

fn with(annotations: &[(&str, &str)], containers: Value) -> anyhow::Result<Pod> {
    let mut pod = pod("bad", annotations);
    pod.spec.as_mut().context("the pod has no spec")?.containers = serde_json::from_value(containers)?;
    Ok(pod)
}

fn limits(limits: &Value) -> Value {
    json!([{"name": "main", "image": "none", "resources": {"limits": limits}}])
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused_with_their_field_and_remedy() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let main = json!([{"name": "main", "image": "none"}]);
    let privileged = json!([{"name": "main", "image": "none", "securityContext": {"privileged": true}}]);
    let cases = vec![
        ("gpu-0gb", with(&[], limits(&json!({"gpu-0gb": "1"})))?, "resources.limits[gpu-0gb]"),
        ("gpu-999gb", with(&[], limits(&json!({"gpu-999gb": "1"})))?, "the largest size is 278Gi"),
        ("10Ti", with(&[(keys::GPU_MEMORY, "10Ti")], main.clone())?, "the largest size is 278Gi"),
        ("-1Gi", with(&[(keys::GPU_MEMORY, "-1Gi")], main.clone())?, "write a positive amount like 10Gi"),
        ("10", with(&[(keys::GPU_MEMORY, "10")], main.clone())?, "write it like 10Gi"),
        (
            "two sizes",
            with(&[], limits(&json!({"gpu-10gb": "1", "kerf.dev/gpu-20gb": "1"})))?,
            "ask once, by one limit or one annotation",
        ),
        (
            "class",
            with(&[(keys::GPU_MEMORY, "10Gi"), (keys::ISOLATION, "total")], main.clone())?,
            "write hardware, memory or none",
        ),
        ("forged", with(&[(keys::REQUEST, "{}")], main)?, keys::REQUEST),
        ("privileged", with(&[(keys::GPU_MEMORY, "10Gi")], privileged)?, "remove securityContext.privileged"),
    ];
    for (case, pod, remedy) in cases {
        let message = cluster.refusal(&pod).await.with_context(|| case.to_owned())?;
        assert!(message.contains(remedy), "{case}: {message}");
        assert!(cluster.pods().get_opt("bad").await?.is_none(), "{case}: the pod exists");
    }
    assert!(
        cluster.gpu_node("h").await?.read_spec()?.slices.is_empty(),
        "something was cut for a refused pod"
    );
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_no_node_can_hold_waits_with_a_reason() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let mut many = with(&[(keys::ISOLATION, "hardware")], limits(&json!({"gpu-10gb": "8"})))?;
    many.metadata.name = Some("many".to_owned());
    cluster.create(&many).await?;
    let message = cluster.event("many", "more slices requested").await?;
    assert!(message.contains("ask for fewer"), "{message}");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_with_a_typo_leaves_the_last_good_one_in_force() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    let good = std::fs::read_to_string(cluster.policy_file())?;
    std::fs::write(cluster.policy_file(), good.replace("defaultIsolation", "defaultIsolaton"))?;
    let log = cluster.webhook().log().to_owned();
    let told = async || Ok(std::fs::read_to_string(&log)?.contains("defaultIsolaton"));
    wait(PATIENCE, "the typo to be named in the log", told).await?;
    cluster.create(&pod("after-typo", &[(keys::GPU_MEMORY, "10Gi")])).await?;
    cluster.running("after-typo").await?;
    // A good file is taken in again: now only class none is allowed.
    let narrow = "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {name: narrow}\nspec:\n  defaultIsolation: none\n  isolation: {none: [mig]}\n";
    std::fs::write(cluster.policy_file(), narrow)?;
    let asking = pod("classy", &[(keys::GPU_MEMORY, "10Gi"), (keys::ISOLATION, "hardware")]);
    let refused = async || {
        Ok(cluster
            .dry_run_refusal(&asking)
            .await?
            .is_some_and(|m| m.contains("policy narrow does not allow hardware")))
    };
    wait(PATIENCE, "the new policy to be in force", refused).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_status_cannot_be_read_counts_as_full() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    cluster.nodes_mut()[0].agent().kill()?;
    let nodes = Api::<GpuNode>::all(cluster.plane().client());
    let slice = json!({"gpu": "GPU-x", "shape": {"kind": "mig", "profile": "huge", "start": 0, "size": 1}, "state": "Held", "memoryMib": 1});
    let patch = json!({"status": {"slices": [slice]}});
    nodes.patch_status("h", &PatchParams::default(), &Patch::Merge(patch)).await?;
    cluster.create(&pod("blind", &[(keys::GPU_MEMORY, "10Gi")])).await?;
    let message = cluster.event("blind", "GpuNode status cannot be read").await?;
    assert!(message.contains("update its agent"), "{message}");
    // The agent comes back and says what really is: the pod runs.
    cluster.nodes_mut()[0].agent().restart()?;
    cluster.running("blind").await?;
    cluster.stop().await
}
