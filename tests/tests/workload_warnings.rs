//! Requests that reach no pod, because they are on the workload or are labels. The real API server warns and refuses
//! nothing, with no program of kerf's in the cluster.

use std::time::Duration;

use anyhow::ensure;
use kerf_core::keys;
use kerf_tests::cluster::{root, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);
const KINDS: [(&str, &str); 6] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "ReplicaSet"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
];

async fn guarded() -> anyhow::Result<ControlPlane> {
    let plane = ControlPlane::start(ControlPlaneOptions::without_controller_manager()).await?;
    let guard = root().join("deploy/base/guard/workloads.yaml").display().to_string();
    plane.kubectl(&["apply", "--server-side", "-f", &guard]).await?;
    let misplaced = workload(KINDS[0], json!({"annotations": {keys::GPU_MEMORY: "10Gi"}}), json!({}));
    // The API server needs about a second until it enforces a new policy.
    wait(TIMEOUT, "the policy to be in force", async || Ok(!warnings(&plane, &misplaced).await?.is_empty()))
        .await?;
    Ok(plane)
}

fn workload((version, kind): (&str, &str), metadata: Value, pods: Value) -> Value {
    let mut metadata = metadata;
    metadata["name"] = json!("train");
    let mut pods = pods;
    pods["labels"]["app"] = json!("train");
    let is_batch = version.starts_with("batch");
    let restart = if is_batch { "Never" } else { "Always" };
    let template = json!({
        "metadata": pods, "spec": {"restartPolicy": restart, "containers": [{"name": "main", "image": "none"}]},
    });
    let spec = match kind {
        "CronJob" => json!({"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}),
        "Job" => json!({"template": template}),
        _ => json!({"selector": {"matchLabels": {"app": "train"}}, "template": template}),
    };
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
}

fn template_of(kind: &str) -> &'static str {
    if kind == "CronJob" { "spec.jobTemplate.spec.template" } else { "spec.template" }
}

/// The API server's warnings when the object is created.
async fn warnings(plane: &ControlPlane, object: &Value) -> anyhow::Result<String> {
    let output =
        plane.kubectl_output(&["create", "--dry-run=server", "-f", "-"], &object.to_string()).await?;
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "it was refused: {reported}");
    Ok(reported)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_reaches_no_pod_is_warned_of_with_its_path() -> anyhow::Result<()> {
    let plane = guarded().await?;
    for (version, kind) in KINDS {
        let template = template_of(kind);
        let create = async |metadata: Value, pods: Value| {
            warnings(&plane, &workload((version, kind), metadata, pods)).await
        };
        for place in ["annotations", "labels"] {
            let reported = create(json!({place: {keys::GPU_MEMORY: "10Gi"}}), json!({})).await?;
            let expected = format!(
                "metadata.{place}[{}] is on the {kind}; kerf reads the pods' own: move it to {template}.metadata.annotations",
                keys::GPU_MEMORY
            );
            assert!(reported.contains(&expected), "{reported}");
        }
        let reported = create(json!({}), json!({"labels": {keys::GPU_MEMORY: "10Gi"}})).await?;
        let expected = format!("{template}.metadata.labels[{}] is a label", keys::GPU_MEMORY);
        assert!(reported.contains(&expected), "{reported}");
        // Keys that the pods have themselves may be on the workload too, and an object that asks for nothing gets no
        // warning.
        let asked = json!({"annotations": {keys::GPU_MEMORY: "10Gi"}});
        for (metadata, pods) in
            [(asked.clone(), asked.clone()), (json!({}), asked.clone()), (json!({}), json!({}))]
        {
            assert_eq!(create(metadata, pods).await?, "", "{kind}");
        }
        // A controller created it from an object whose author was warned already.
        let owner = json!([{"apiVersion": "example.com/v1", "kind": "Owner", "name": "o", "uid": "1", "controller": true}]);
        let made = json!({"annotations": {keys::GPU_MEMORY: "10Gi"}, "ownerReferences": owner});
        assert_eq!(create(made, json!({})).await?, "", "{kind}");
    }
    plane.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_is_warned_of_also_in_an_update() -> anyhow::Result<()> {
    let plane = guarded().await?;
    let deployment = |metadata: Value| workload(KINDS[0], metadata, json!({}));
    for key in keys::ASKED.iter().map(|key| (*key).to_owned()).chain([format!("{}.main", keys::GPU_MEMORY)]) {
        let reported = warnings(&plane, &deployment(json!({"annotations": {&key: "1"}}))).await?;
        assert!(
            reported.contains(&format!("metadata.annotations[{key}] is on the Deployment")),
            "{reported}"
        );
    }
    plane.apply(&deployment(json!({})).to_string()).await?;
    let annotate = ["annotate", "deployment", "train", "kerf.dev/gpu-memory=10Gi"];
    let output = plane.kubectl_output(&annotate, "").await?;
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && reported.contains("is on the Deployment"), "{reported}");
    let mut nightly = workload(KINDS[5], json!({}), json!({}));
    nightly["spec"]["jobTemplate"]["metadata"] = json!({"annotations": {keys::GPU_MODEL: "T4-16GB"}});
    let reported = warnings(&plane, &nightly).await?;
    let expected = format!("spec.jobTemplate.metadata.annotations[{}] is on the CronJob", keys::GPU_MODEL);
    assert!(reported.contains(&expected), "{reported}");
    plane.stop().await
}
