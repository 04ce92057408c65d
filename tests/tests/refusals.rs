//! Bad input, through the real API server: each gets an answer that names the field and the remedy, and nothing else is
//! disturbed.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::cluster::{Cluster, ClusterOptions, NAMESPACE, NodeSpec, pod, sized_pod, wait};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);

async fn cluster() -> anyhow::Result<Cluster> {
    let options = ClusterOptions::without_controller_manager(vec![NodeSpec::new("h", Model::H100, 1)]);
    Cluster::start(options, |_| ()).await
}

fn pod_with(annotations: &[(&str, &str)], containers: Value) -> anyhow::Result<Pod> {
    let mut pod = pod("bad", annotations);
    pod.spec.as_mut().context("the pod has no spec")?.containers = serde_json::from_value(containers)?;
    Ok(pod)
}

fn limits(limits: &Value) -> Value {
    json!([{"name": "main", "image": "none", "resources": {"limits": limits}}])
}

/// Every refusal of the webhook, with a pod that gets it. The webhook's own test writes the file and keeps it complete.
const REFUSALS: &str = include_str!("../../webhook/src/admit/refusals.json");

#[derive(Deserialize)]
struct Refusals {
    /// The policies under which the refusals happen. The cluster has no GPU.
    policies: Vec<Value>,
    cases: Vec<Case>,
    /// Pods that are admitted with a warning.
    warned: Vec<Warned>,
}

#[derive(Deserialize)]
struct Warned {
    #[serde(rename = "case")]
    name: String,
    pod: Value,
    text: String,
}

#[derive(Deserialize)]
struct Case {
    #[serde(rename = "case")]
    name: String,
    /// Whether the API server would refuse the pod before the webhook sees it.
    direct: bool,
    pod: Value,
    text: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_and_warning_reaches_the_user_with_its_field_and_remedy() -> anyhow::Result<()> {
    let Refusals { policies, cases, warned } = serde_json::from_str(REFUSALS)?;
    let cluster = Cluster::start(ClusterOptions::without_controller_manager(Vec::new()), |_| ()).await?;
    let documents: Vec<String> = policies.iter().map(Value::to_string).collect();
    std::fs::write(cluster.policy_file(), documents.join("\n---\n"))?;
    let nobodys = pod("nobodys", &[(keys::GPU_MEMORY, "10Gi")]);
    let in_force = async || {
        let refusal = cluster.dry_run_refusal(&nobodys).await?;
        Ok(refusal.is_some_and(|said| said.contains("no policy of kerf's matches")))
    };
    wait(TIMEOUT, "the policies to be in force", in_force).await?;
    // The pod is retried, because the webhook widens its match condition for the policies' dialects a moment later.
    let mut foreign = pod_with(&[], limits(&json!({"nvidia.com/gpumem": "300k"})))?;
    foreign.metadata.labels = Some([("policy".to_owned(), "dialects".to_owned())].into());
    let comes = async || Ok(cluster.dry_run_refusal(&foreign).await?.is_some());
    wait(TIMEOUT, "pods in the policies' dialects to come to the webhook", comes).await?;
    let mut reached = 0;
    for Case { name: case, pod, text, .. } in cases.into_iter().filter(|case| !case.direct) {
        let bad: Pod = serde_json::from_value(pod.clone()).with_context(|| case.clone())?;
        let message = cluster.refusal(&bad).await.with_context(|| format!("{case}: {pod}"))?;
        assert_eq!(
            message,
            format!("admission webhook \"pods.kerf.dev\" denied the request: {text}"),
            "{case}: {pod}"
        );
        reached += 1;
    }
    assert!(reached > 40, "only {reached} refusals are known");
    assert!(!warned.is_empty(), "no warning is known");
    for Warned { name: case, pod, text } in warned {
        let create = ["create", "--dry-run=server", "-f", "-"];
        let output = cluster.plane().kubectl_output(&create, &pod.to_string()).await?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{case}: {said}");
        assert_eq!(said.trim(), format!("Warning: {text}"), "{case}");
    }
    assert!(cluster.pods().list(&ListParams::default()).await?.items.is_empty(), "a refused pod exists");
    namespaces_labels_choose_the_policy(&cluster).await?;
    cluster.stop().await
}

/// The webhook watches Namespaces, with its installed rights, once a policy asks for their labels. A namespace and its
/// pod may be created at the same time, and a label that changes is followed.
async fn namespaces_labels_choose_the_policy(cluster: &Cluster) -> anyhow::Result<()> {
    let policy = |name: &str, spec: Value| {
        json!({"apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": spec}).to_string()
    };
    let by_label = json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]});
    let served = json!({"defaultIsolation": "memory", "isolation": {"memory": ["mig"]}, "match": {"namespaceLabels": {"tier": "gold"}}});
    let policies = [
        policy("none", json!({"deny": "no tier", "match": {"namespaceSelector": by_label}})),
        policy("gold", served),
    ];
    std::fs::write(cluster.policy_file(), policies.join("\n---\n"))?;
    let ten = pod("ten", &[(keys::GPU_MEMORY, "10Gi")]);
    let said = async |pod: &Pod, part: &str| {
        Ok(cluster.dry_run_refusal(pod).await?.is_some_and(|said| said.contains(part)))
    };
    wait(TIMEOUT, "the namespace without a tier to be denied", async || {
        said(&ten, "policy none gives this pod no GPU: no tier").await
    })
    .await?;
    let client = || cluster.plane().client();
    let namespaces = Api::<Namespace>::all(client());
    let params = PostParams::default();
    for number in 0..5 {
        let name = format!("gold-{number}");
        let labels = json!({"metadata": {"name": name, "labels": {"tier": "gold"}}});
        namespaces.create(&params, &serde_json::from_value(labels)?).await?;
        let admitted = Api::<Pod>::namespaced(client(), &name).create(&params, &ten).await?;
        assert!(admitted.metadata.annotations.is_some_and(|all| all.contains_key(keys::REQUEST)), "{name}");
    }
    let label = json!({"metadata": {"labels": {"tier": "silver"}}});
    namespaces.patch("default", &PatchParams::default(), &Patch::Merge(label)).await?;
    wait(TIMEOUT, "the new label to be in force", async || said(&ten, "no policy of kerf's matches").await)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_count_fits_no_node_is_pending_with_a_reason() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let mut many = pod_with(&[(keys::ISOLATION, "hardware")], limits(&json!({"gpu-10gb": "8"})))?;
    many.metadata.name = Some("many".to_owned());
    cluster.create(&many).await?;
    let message = cluster.event("many", "more slices requested").await?;
    assert!(message.contains("ask for fewer"), "{message}");
    cluster.stop().await
}

/// Waits for an Event with this reason about the webhook's configuration, in the namespace for Events about
/// cluster-scoped objects.
async fn policy_event(cluster: &Cluster, reason: &str) -> anyhow::Result<String> {
    let api = Api::<Event>::namespaced(cluster.plane().client(), "default");
    let found = async || {
        let events = api.list(&ListParams::default()).await?.items.into_iter();
        let about = |event: &Event| {
            event.involved_object.kind.as_deref() == Some("MutatingWebhookConfiguration")
                && event.involved_object.uid.is_some()
        };
        let mut of_reason = events.filter(|e| about(e) && e.reason.as_deref() == Some(reason));
        anyhow::Ok(of_reason.next().and_then(|event| event.message))
    };
    wait(TIMEOUT, &format!("an Event {reason}"), async || Ok(found().await?.is_some())).await?;
    found().await?.context("the Event is gone")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_with_a_typo_keeps_the_last_valid_one_applied() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    let good = std::fs::read_to_string(cluster.policy_file())?;
    std::fs::write(cluster.policy_file(), good.replace("defaultIsolation", "defaultIsolaton"))?;
    let log = cluster.webhook().log().to_owned();
    let reported = async || Ok(std::fs::read_to_string(&log)?.contains("defaultIsolaton"));
    wait(TIMEOUT, "the typo to be named in the log", reported).await?;
    let refused = policy_event(&cluster, "PolicyRefused").await?;
    assert!(refused.contains("defaultIsolaton") && refused.contains("stays in force"), "{refused}");
    cluster.create(&pod("after-typo", &[(keys::GPU_MEMORY, "10Gi")])).await?;
    cluster.running("after-typo").await?;
    let narrow = "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {name: narrow}\nspec:\n  defaultIsolation: none\n  isolation: {none: [mig]}\n";
    std::fs::write(cluster.policy_file(), narrow)?;
    let asking = sized_pod("classy", "10Gi", "hardware");
    let refused = async || {
        Ok(cluster
            .dry_run_refusal(&asking)
            .await?
            .is_some_and(|m| m.contains("policy narrow does not allow hardware")))
    };
    wait(TIMEOUT, "the new policy to be in force", refused).await?;
    let loaded = policy_event(&cluster, "PolicyLoaded").await?;
    assert!(loaded.contains("good again"), "{loaded}");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_repairs_an_invalid_status_of_its_gpu_node() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    // The API server accepts a status only from the node's agent, so the test writes with its account.
    let plane = cluster.plane();
    let agent = plane.kubeconfig_for_service_account_on_node(NAMESPACE, "kerf-node-agent", "h").await?;
    let nodes = Api::<GpuNode>::all(plane.client_as(&agent).await?);
    let slice = json!({"gpu": "GPU-x", "shape": {"kind": "mig", "profile": "huge", "start": 0, "size": 1}, "state": "Held", "memoryMib": 1});
    let patch = json!({"status": {"slices": [slice]}});
    nodes.patch_status("h", &PatchParams::default(), &Patch::Merge(patch)).await?;
    cluster.create(&pod("served", &[(keys::GPU_MEMORY, "10Gi")])).await?;
    cluster.running("served").await?;
    // The agent does not read such a change, but it writes the whole status with its next one.
    let readable = async || Ok(cluster.gpu_node("h").await?.read_status().is_ok());
    wait(TIMEOUT, "the agent to write its status again", readable).await?;
    cluster.stop().await
}
