//! Bare names in pod templates, through the real kubectl and API server: the template gets the qualified name, applying
//! it again changes nothing, and its pods run.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, wait};
use kerf_tests::pods::phase_of;
use kube::api::ListParams;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_mins(1);

/// A kind with a pod template: its API version and the path of its template.
struct Kind {
    name: &'static str,
    version: &'static str,
    template: &'static str,
}

const KINDS: [Kind; 6] = [
    Kind { name: "Deployment", version: "apps/v1", template: "/spec/template" },
    Kind { name: "StatefulSet", version: "apps/v1", template: "/spec/template" },
    Kind { name: "DaemonSet", version: "apps/v1", template: "/spec/template" },
    Kind { name: "ReplicaSet", version: "apps/v1", template: "/spec/template" },
    Kind { name: "Job", version: "batch/v1", template: "/spec/template" },
    Kind { name: "CronJob", version: "batch/v1", template: "/spec/jobTemplate/spec/template" },
];

impl Kind {
    /// The name of its object, which is its pods' label too.
    fn object(&self) -> String {
        self.name.to_lowercase()
    }

    /// A manifest as a user writes it, for one slice of `limit`.
    fn manifest(&self, limit: &str) -> Value {
        let app = json!({"app": self.object()});
        let main =
            json!({"name": "main", "image": "none", "resources": {"limits": {"cpu": "100m", limit: 1}}});
        let mut pod = json!({"containers": [main], "terminationGracePeriodSeconds": 0});
        if self.version == "batch/v1" {
            pod["restartPolicy"] = json!("Never");
        }
        let template = json!({"metadata": {"labels": app}, "spec": pod});
        let spec = match self.name {
            "CronJob" => json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}),
            "Job" => json!({"template": template}),
            "StatefulSet" => {
                json!({"serviceName": "none", "selector": {"matchLabels": app}, "template": template})
            }
            _ => json!({"selector": {"matchLabels": app}, "template": template}),
        };
        json!({"apiVersion": self.version, "kind": self.name, "metadata": {"name": self.object()}, "spec": spec})
    }

    async fn read(&self, cluster: &Cluster) -> anyhow::Result<Value> {
        let name = self.object();
        let text = cluster.plane().kubectl(&["get", &name, &name, "-o", "json"]).await?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The limits of the template's container.
    fn limits<'o>(&self, object: &'o Value) -> &'o Value {
        object
            .pointer(&format!("{}/spec/containers/0/resources/limits", self.template))
            .unwrap_or(&Value::Null)
    }
}

async fn apply(cluster: &Cluster, manifest: &Value, flags: &[&str]) -> anyhow::Result<()> {
    let arguments = [&["apply", "-f", "-"], flags].concat();
    let output = cluster.plane().kubectl_output(&arguments, &manifest.to_string()).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn version(object: &Value) -> (&Value, &Value) {
    (&object["metadata"]["generation"], &object["metadata"]["resourceVersion"])
}

/// Waits until a pod of this app runs.
async fn runs(cluster: &Cluster, app: &str) -> anyhow::Result<()> {
    let labelled = ListParams::default().labels(&format!("app={app}"));
    let running = async || {
        let pods = cluster.pods().list(&labelled).await?;
        Ok(pods.items.iter().any(|pod| phase_of(pod) == "Running"))
    };
    wait(TIMEOUT, &format!("a pod of {app} to run"), running).await
}

/// Applies the manifest again until no other program writes the object in between, because controllers write its status
/// for a while.
async fn applying_again_is_a_no_op(
    cluster: &Cluster,
    kind: &Kind,
    manifest: &Value,
    flags: &[&str],
) -> anyhow::Result<()> {
    let generation = kind.read(cluster).await?["metadata"]["generation"].clone();
    let unchanged = async || {
        let before = kind.read(cluster).await?;
        apply(cluster, manifest, flags).await?;
        let after = kind.read(cluster).await?;
        ensure!(
            after["metadata"]["generation"] == generation,
            "generation {generation} became {:?}",
            version(&after)
        );
        Ok(version(&before) == version(&after))
    };
    wait(TIMEOUT, &format!("{} to stay as it is when it is applied again {flags:?}", kind.name), unchanged)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_name_works_in_every_template_and_applying_it_twice_changes_nothing() -> anyhow::Result<()> {
    let cluster =
        Cluster::start(ClusterOptions::new(vec![NodeSpec::new("h", Model::H100, 1)]), |_| ()).await?;
    for kind in &KINDS {
        let manifest = kind.manifest("gpu-10gb");
        apply(&cluster, &manifest, &[]).await.with_context(|| kind.name)?;
        let stored = kind.read(&cluster).await?;
        assert_eq!(*kind.limits(&stored), json!({"cpu": "100m", "kerf.dev/gpu-10gb": "1"}), "{}", kind.name);
        if kind.name == "CronJob" {
            cluster.plane().kubectl(&["create", "job", "cronjob-now", "--from=cronjob/cronjob"]).await?;
        }
        runs(&cluster, &kind.object()).await?;
        applying_again_is_a_no_op(&cluster, kind, &manifest, &[]).await?;
    }
    // A second rollout would show as a second ReplicaSet.
    let sets = cluster.plane().kubectl(&["get", "replicasets", "-l", "app=deployment", "-o", "name"]).await?;
    assert_eq!(sets.lines().count(), 1, "{sets}");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_size_replaces_the_one_that_was_applied_before() -> anyhow::Result<()> {
    let cluster = Cluster::start(ClusterOptions::without_controller_manager(Vec::new()), |_| ()).await?;
    for kind in KINDS.iter().filter(|kind| kind.name != "Job") {
        for flags in [&[][..], &["--server-side"]] {
            for size in ["10gb", "20gb", "10gb"] {
                let manifest = kind.manifest(&format!("gpu-{size}"));
                apply(&cluster, &manifest, flags)
                    .await
                    .with_context(|| format!("{} {flags:?}", kind.name))?;
                let stored = kind.read(&cluster).await?;
                let limits = json!({"cpu": "100m", format!("kerf.dev/gpu-{size}"): "1"});
                assert_eq!(*kind.limits(&stored), limits, "{} {flags:?}", kind.name);
                applying_again_is_a_no_op(&cluster, kind, &manifest, flags).await?;
            }
            cluster.plane().kubectl(&["delete", kind.name, &kind.object()]).await?;
        }
    }
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_webhook_the_api_server_rejects_only_bare_names() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(ClusterOptions::without_controller_manager(Vec::new()), |_| ()).await?;
    cluster.webhook().kill()?;
    for kind in &KINDS {
        let refused = apply(&cluster, &kind.manifest("gpu-10gb"), &[]).await;
        let message = refused.err().with_context(|| format!("{} was taken", kind.name))?.to_string();
        assert!(message.contains("must be a standard resource type or fully qualified"), "{message}");
        apply(&cluster, &kind.manifest("kerf.dev/gpu-10gb"), &[]).await.with_context(|| kind.name)?;
    }
    cluster.stop().await
}
