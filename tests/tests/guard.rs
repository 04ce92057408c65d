//! The fields that only kerf's programs may write, through the real API server: even an admin of the cluster may not
//! write them. Everything else passes, with the webhook down too.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::admission::set_match_condition;
use kerf_tests::cluster::{Cluster, ClusterOptions, NAMESPACE, NodeSpec, pod, wait};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);
const EXTENDER: &str = "system:serviceaccount:kerf-system:kerf-extender";

/// A cluster with a node `h`, on which `sliced` runs with a slice and `plain` without, and an admin called alice.
async fn cluster() -> anyhow::Result<Cluster> {
    let options = ClusterOptions::without_controller_manager(vec![NodeSpec::new("h", Model::H100, 1)]);
    let cluster = Cluster::start(options, |_| ()).await?;
    let role = ["create", "clusterrolebinding", "alice", "--clusterrole=cluster-admin", "--user=alice"];
    cluster.plane().kubectl(&role).await?;
    let mut sliced = pod("sliced", &[(keys::GPU_MEMORY, "10Gi")]);
    sliced.metadata.finalizers = Some(vec!["example.com/kept".to_owned()]);
    cluster.create(&sliced).await?;
    cluster.create(&pod("plain", &[])).await?;
    cluster.running("sliced").await?;
    cluster.running("plain").await?;
    // The API server needs about a second until it enforces a new policy.
    let guarded = async || {
        Ok(refused(&alice(&cluster, &["label", "pod", "plain", "kerf.dev/sliced=true"]).await?).is_ok())
    };
    wait(TIMEOUT, "the guard to be in force", guarded).await?;
    Ok(cluster)
}

async fn as_user(cluster: &Cluster, user: &str, arguments: &[&str]) -> anyhow::Result<Output> {
    cluster.plane().kubectl_output(&[&["--as", user], arguments].concat(), "").await
}

async fn alice(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<Output> {
    as_user(cluster, "alice", arguments).await
}

/// Why kubectl was refused.
fn refused(output: &Output) -> anyhow::Result<String> {
    ensure!(!output.status.success(), "it was taken: {}", String::from_utf8_lossy(&output.stdout));
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn taken(output: &Output) -> anyhow::Result<()> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The keys that kerf has written into a pod.
fn written(pod: &Pod) -> Vec<Option<String>> {
    let annotation = |key: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned();
    let label = pod.metadata.labels.as_ref().and_then(|l| l.get(keys::SLICED)).cloned();
    [keys::REQUEST, keys::ASSIGNMENT, keys::ROOM].map(annotation).into_iter().chain([label]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn users_cannot_change_what_kerf_has_written_into_a_pod() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let before = written(&cluster.pods().get("sliced").await?);
    for key in [keys::REQUEST, keys::ASSIGNMENT] {
        for pod in ["sliced", "plain"] {
            let mark = format!("{key}={{}}");
            let message = refused(&alice(&cluster, &["annotate", "--overwrite", "pod", pod, &mark]).await?)?;
            assert!(
                message.contains(&format!("metadata.annotations[{key}] is written by kerf")),
                "{message}"
            );
        }
        let message = refused(&alice(&cluster, &["annotate", "pod", "sliced", &format!("{key}-")]).await?)?;
        assert!(message.contains("is written by kerf"), "{message}");
        for subresource in ["status", "resize", "ephemeralcontainers"] {
            let patch = json!({"metadata": {"annotations": {key: "x"}}}).to_string();
            let flag = format!("--subresource={subresource}");
            // The result is ignored, because for some subresources the API server itself drops all other fields.
            let _ = alice(&cluster, &["patch", "pod", "sliced", &flag, "-p", &patch]).await?;
            assert_eq!(written(&cluster.pods().get("sliced").await?), before, "{key} by {subresource}");
        }
    }
    let room = format!("{}=now", keys::ROOM);
    refused(&alice(&cluster, &["annotate", "--overwrite", "pod", "sliced", &room]).await?)?;
    let sliced = keys::SLICED;
    for label in [format!("{sliced}=false"), format!("{sliced}-")] {
        let message = refused(&alice(&cluster, &["label", "--overwrite", "pod", "sliced", &label]).await?)?;
        assert!(message.contains("metadata.labels[kerf.dev/sliced] is written by kerf"), "{message}");
    }
    assert_eq!(written(&cluster.pods().get("sliced").await?), before);
    // The extender annotates a pod that has room, and may have done so already.
    let annotate = ["annotate", "--overwrite", "pod", "sliced", &room];
    taken(&as_user(&cluster, EXTENDER, &annotate).await?)?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn other_fields_of_an_admitted_pod_may_change_while_the_webhook_is_down() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    cluster.webhook().kill()?;
    taken(&alice(&cluster, &["label", "pod", "sliced", "team=vision"]).await?)?;
    taken(
        &alice(&cluster, &["annotate", "pod", "sliced", "example.com/note=1", "kerf.dev/movable=true"])
            .await?,
    )?;
    let status = json!({"status": {"message": "seen"}}).to_string();
    taken(&alice(&cluster, &["patch", "pod", "sliced", "--subresource=status", "-p", &status]).await?)?;
    alice(&cluster, &["delete", "pod", "sliced", "--wait=false", "--grace-period=0"]).await?;
    let finalizers = json!([{"op": "remove", "path": "/metadata/finalizers"}]).to_string();
    taken(&alice(&cluster, &["patch", "pod", "sliced", "--type=json", "-p", &finalizers]).await?)?;
    let gone = async || Ok(cluster.pods().get_opt("sliced").await?.is_none());
    wait(TIMEOUT, "the pod without its finalizer to go", gone).await?;
    cluster.stop().await
}

fn debugging(name: &str, variable: &str) -> String {
    let env = json!([{"name": variable, "value": "all"}]);
    json!({"spec": {"ephemeralContainers": [{"name": name, "image": "none", "env": env}]}}).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ephemeral_container_gets_no_gpu_beside_the_slice() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let add = async |pod: &str, patch: &str| {
        alice(&cluster, &["patch", "pod", pod, "--subresource=ephemeralcontainers", "-p", patch]).await
    };
    for variable in ["NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
    {
        let message = refused(&add("sliced", &debugging("debug", variable)).await?)?;
        assert!(message.contains("ephemeral container debug"), "{message}");
    }
    taken(&add("sliced", &debugging("look", "LANG")).await?)?;
    taken(&add("plain", &debugging("look", "NVIDIA_VISIBLE_DEVICES")).await?)?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_extender_assigns_by_a_binding() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    for name in ["one", "two"] {
        let mut waiting = pod(name, &[]);
        if let Some(spec) = &mut waiting.spec {
            spec.scheduler_name = Some("nobody".to_owned());
        }
        cluster.create(&waiting).await?;
    }
    let bind = async |user: &str, pod: &str, path: &str, annotations: Value| {
        let metadata = json!({"name": pod, "namespace": "default", "annotations": annotations});
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": "h"});
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target});
        let arguments = ["--as", user, "create", "--raw", path, "-f", "-"];
        cluster.plane().kubectl_output(&arguments, &binding.to_string()).await
    };
    let base = "/api/v1/namespaces/default";
    for path in [format!("{base}/pods/one/binding"), format!("{base}/bindings")] {
        for key in [keys::ASSIGNMENT, keys::REQUEST] {
            let message = refused(&bind("alice", "one", &path, json!({key: "{}"})).await?)?;
            assert!(message.contains(&format!("{key} is written by the extender of kerf")), "{message}");
        }
    }
    taken(
        &bind("alice", "one", &format!("{base}/pods/one/binding"), json!({"example.com/note": "1"})).await?,
    )?;
    taken(
        &bind(EXTENDER, "two", &format!("{base}/pods/two/binding"), json!({keys::ASSIGNMENT: "{}"})).await?,
    )?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_a_system_namespace_with_a_request_document_is_rejected() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    for namespace in ["kube-system", NAMESPACE] {
        let pods: Api<Pod> = Api::namespaced(cluster.plane().client(), namespace);
        for key in [keys::REQUEST, keys::ASSIGNMENT] {
            let mut forged = pod("forged", &[(key, "{}")]);
            if let Some(spec) = &mut forged.spec {
                spec.scheduler_name = Some("kerf-scheduler".to_owned());
            }
            let forged = pods.create(&PostParams::default(), &forged).await;
            let message = forged.err().context("a forged request was taken")?.to_string();
            assert!(message.contains("kerf gives no slices in this namespace"), "{message}");
        }
        pods.create(&PostParams::default(), &pod("mine", &[])).await?;
    }
    cluster.stop().await
}

/// A client with an agent's account, in a pod on `node`.
async fn agent(cluster: &Cluster, node: &str) -> anyhow::Result<Client> {
    let plane = cluster.plane();
    let account = plane.kubeconfig_for_service_account_on_node(NAMESPACE, "kerf-node-agent", node).await?;
    plane.client_as(Path::new(&account)).await
}

async fn node_labels(client: &Client, node: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let nodes = Api::<Node>::all(client.clone());
    Ok(nodes.get(node).await?.metadata.labels.unwrap_or_default())
}

async fn patch_status(client: &Client, node: &str) -> Result<(), kube::Error> {
    let patch = Patch::Merge(json!({"status": {"summary": {"gpus": "none"}}}));
    Api::<GpuNode>::all(client.clone()).patch_status(node, &PatchParams::default(), &patch).await.map(drop)
}

/// Of GPU Operator's labels an agent changes four, from deployed to paused and back.
async fn only_dcgm_is_paused(admin: &Api<Node>, own: &Api<Node>) -> anyhow::Result<()> {
    let label = async |nodes: &Api<Node>, program: &str, value: Value| {
        let patch = json!({"metadata": {"labels": {format!("nvidia.com/gpu.deploy.{program}"): value}}});
        nodes.patch("h", &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    };
    let paused = "paused-for-mig-change";
    for (program, from, to, may) in [
        ("dcgm", json!("true"), json!(paused), true),
        ("dcgm-exporter", json!(paused), json!("true"), true),
        ("gpu-feature-discovery", json!("true"), json!(paused), true),
        ("nvsm", json!("true"), json!(paused), true),
        ("dcgm", json!("true"), json!("false"), false),
        ("dcgm", json!("true"), Value::Null, false),
        ("dcgm", json!("false"), json!(paused), false),
        ("dcgm", json!("false"), json!("true"), false),
        ("dcgm", Value::Null, json!(paused), false),
        ("dcgm", json!(paused), json!("false"), false),
        ("device-plugin", json!("true"), json!(paused), false),
        ("driver", json!(paused), json!("true"), false),
    ] {
        label(admin, program, from.clone()).await?;
        let result = label(own, program, to.clone()).await;
        label(admin, program, Value::Null).await?;
        match result {
            Ok(()) => ensure!(may, "{program} was changed from {from} to {to}"),
            Err(error) => ensure!(
                !may && error.to_string().contains(&format!("the label nvidia.com/gpu.deploy.{program}")),
                "{program} from {from} to {to}: {error}"
            ),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_node_s_own_agent_writes_its_status() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    // What the agent needs is allowed: NVIDIA's labels say what runs there.
    let reported = async || {
        let labels = node_labels(&cluster.plane().client(), "h").await?;
        let reported = ["gpu.product", "mig.strategy", "mig-1g.10gb.count", "mig-1g.10gb.multiprocessors"]
            .map(|name| labels.get(&format!("nvidia.com/{name}")).cloned().unwrap_or_default());
        let right = reported == ["NVIDIA-H100-80GB-HBM3", "mixed", "1", "16"];
        ensure!(right, "{reported:?}; {}", cluster.nodes()[0].agent_log());
        Ok(right)
    };
    wait(TIMEOUT, "the labels of a GPU with one instance", reported).await?;
    cluster.nodes_mut()[0].agent().kill()?;
    cluster.plane().apply("{apiVersion: v1, kind: Node, metadata: {name: other}}").await?;
    let (own, other) = (agent(&cluster, "h").await?, agent(&cluster, "other").await?);
    for client in [&other, &cluster.plane().client()] {
        let message =
            patch_status(client, "h").await.err().context("a foreign status was taken")?.to_string();
        assert!(message.contains("status is written by the agent of this node"), "{message}");
    }
    patch_status(&own, "h").await?;
    // An agent may not change another node's objects either.
    let label = Patch::Merge(json!({"metadata": {"labels": {"kerf.dev/gpu-model": "H100-80GB"}}}));
    let nodes = |client: &Client| Api::<Node>::all(client.clone());
    let foreign = nodes(&own).patch("other", &PatchParams::default(), &label).await;
    let message = foreign.err().context("a foreign node was labelled")?.to_string();
    assert!(message.contains("this is of node other"), "{message}");
    nodes(&own).patch("h", &PatchParams::default(), &label).await?;
    only_dcgm_is_paused(&nodes(&cluster.plane().client()), &nodes(&own)).await?;
    for (change, why) in [
        (json!({"metadata": {"labels": {"kerf.dev/managed": "false"}}}), "the label kerf.dev/managed"),
        (json!({"metadata": {"labels": {"nvidia.com/mig.config": "x"}}}), "the label nvidia.com/mig.config"),
        (json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}), "spec of a node"),
    ] {
        let refused = nodes(&own).patch("h", &PatchParams::default(), &Patch::Merge(change)).await;
        let message = refused.err().context(why)?.to_string();
        assert!(message.contains(why), "{message}");
    }
    let pods: Api<Pod> = Api::default_namespaced(other);
    let deleted = pods.delete("plain", &kube::api::DeleteParams::default()).await;
    assert!(deleted.is_err(), "an agent deleted a pod of another node");
    // The API server asks no policy about the pod of an eviction, so agents have no right to evict at all.
    let evicted = pods.evict("plain", &kube::api::EvictParams::default()).await;
    let refused = evicted.err().context("an agent evicted a pod of another node")?.to_string();
    assert!(refused.contains("pods/eviction"), "{refused}");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_may_write_a_gpu_nodes_policy_but_no_reservation() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let reserved = async || {
        let slices = cluster.gpu_node("h").await?.read_status()?.unwrap_or_default().slices;
        anyhow::Ok(slices.into_iter().filter_map(|slice| slice.reservation).collect::<Vec<_>>())
    };
    let is_bound = async || Ok(reserved().await?.iter().any(|reservation| !reservation.binding));
    wait(TIMEOUT, "the pod's reservation to be reported", is_bound).await?;
    let before = reserved().await?;
    let patch = async |spec: Value| {
        let patch = json!({"spec": spec}).to_string();
        alice(&cluster, &["patch", "gpunode", "h", "--type=merge", "-p", &patch]).await
    };
    let slice = json!({"id": "s9", "gpu": "GPU-0", "shape": {"kind": "whole", "sizeGb": 80}});
    for (field, value) in
        [("slices", json!([slice])), ("revision", json!(99)), ("epoch", json!(99)), ("nextSlice", json!(7))]
    {
        let message = refused(&patch(json!({field: value})).await?)?;
        assert!(message.contains(&format!("spec.{field} is written by the extender of kerf")), "{message}");
    }
    taken(&patch(json!({"policy": {"overUse": "report"}})).await?)?;
    taken(&alice(&cluster, &["label", "gpunode", "h", "a=b"]).await?)?;
    assert_eq!(reserved().await?, before);
    cluster.stop().await
}

/// A pod of kube-system, which never reaches the webhook, whose container in `list` has this limit.
fn with_limit(list: &str, name: &str, amount: &str, more: &Value) -> Value {
    let main = json!({"name": "main", "image": "none"});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "kube-system"},
        "spec": {"containers": [main]},
    });
    pod["spec"][list] = json!([{"name": "a", "image": "none", "resources": {"limits": {name: amount}}}]);
    for (key, value) in more.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// Makes a pod in a namespace that asks kerf.
type AskingPod<'p> = Box<dyn Fn(&str) -> Value + 'p>;

const ALICE: [&str; 2] = ["--as", "alice"];
const NODE: [&str; 4] = ["--as", "system:node:h", "--as-group", "system:nodes"];

/// Creates a pod as a user, by a dry run.
async fn create(cluster: &Cluster, user: &[&str], pod: &Value) -> anyhow::Result<Output> {
    let arguments = [user, &["create", "--dry-run=server", "-f", "-"]].concat();
    cluster.plane().kubectl_output(&arguments, &pod.to_string()).await
}

/// Gives nodes every right, so that only the guard refuses what they do.
async fn trust_nodes(cluster: &Cluster) -> anyhow::Result<()> {
    let group =
        ["create", "clusterrolebinding", "nodes", "--clusterrole=cluster-admin", "--group=system:nodes"];
    cluster.plane().kubectl(&group).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_asks_for_a_slice_without_a_request_document_is_rejected() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    trust_nodes(&cluster).await?;
    // The API server skips the webhook for every pod, as it does for a pod to which a later webhook adds kerf's keys. A
    // running webhook would restore the condition.
    cluster.webhook().kill()?;
    set_match_condition(&cluster.plane().client(), "false").await?;
    let annotated = |namespace: &str, key: &str| {
        let metadata = json!({"name": "p", "namespace": namespace, "annotations": {key: "10Gi"}});
        let spec = json!({"containers": [{"name": "main", "image": "none"}]});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    };
    let passed_over = async || {
        taken(&create(&cluster, &ALICE, &annotated("default", "kerf.dev/unknown")).await?).map(|()| true)
    };
    wait(TIMEOUT, "the API server to pass pods over", passed_over).await?;
    let ours = json!({"schedulerName": "kerf-scheduler"});
    let limited = |namespace: &str, list: &str, name: &str, amount: &str| {
        let mut pod = with_limit(list, name, amount, &ours);
        pod["metadata"]["namespace"] = json!(namespace);
        pod
    };
    let asked = keys::ASKED.into_iter().filter(|key| *key != keys::MOVABLE).map(str::to_owned);
    let mut fields: Vec<(String, AskingPod)> = Vec::new();
    for key in asked.chain(keys::PER_CONTAINER.map(|key| format!("{key}.main"))) {
        let field = format!("metadata.annotations[{key}]");
        fields.push((field, Box::new(move |namespace| annotated(namespace, &key))));
    }
    for (list, name) in [
        ("containers", "kerf.dev/gpu-10gb"),
        ("containers", "nvidia.com/gpu-10gb"),
        ("initContainers", "nvidia.com/gpu-10gb.shared"),
    ] {
        let field = format!("container a, resources.limits[{name}]");
        fields.push((field, Box::new(move |namespace| limited(namespace, list, name, "1"))));
    }
    for (field, pod) in &fields {
        let message = refused(&create(&cluster, &ALICE, &pod("default")).await?)?;
        let reported =
            [field, "the webhook of kerf has not decided on this pod", "write it into the pod template"];
        assert!(reported.iter().all(|part| message.contains(part)), "{message}");
        let warned = create(&cluster, &ALICE, &pod("kube-system")).await?;
        taken(&warned)?;
        let message = String::from_utf8_lossy(&warned.stderr).into_owned();
        let reported = ["Warning: ", field, "kerf serves no pod of namespace kube-system"];
        assert!(reported.iter().all(|part| message.contains(part)), "{message}");
    }
    for pod in [
        annotated("default", keys::MOVABLE),
        annotated("default", "kerf.dev/gpu-memoryless"),
        limited("default", "containers", "kerf.dev/gpu-10gb", "0"),
        limited("default", "containers", "nvidia.com/gpu", "1"),
    ] {
        let output = create(&cluster, &ALICE, &pod).await?;
        taken(&output)?;
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut decided = annotated("default", keys::GPU_MEMORY);
    decided["metadata"]["annotations"][keys::REQUEST] = json!("{}");
    decided["spec"]["schedulerName"] = json!("kerf-scheduler");
    taken(&create(&cluster, &ALICE, &decided).await?)?;
    let mut mirror = annotated("default", keys::GPU_MEMORY);
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
    mirror["spec"]["nodeName"] = json!("h");
    refused(&create(&cluster, &ALICE, &mirror).await?)?;
    taken(&create(&cluster, &NODE, &mirror).await?)?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kerfs_own_resource_names_need_a_scheduler_that_calls_the_extender() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    trust_nodes(&cluster).await?;
    let (named, ours) = (json!({"nodeName": "h"}), json!({"schedulerName": "kerf-scheduler"}));
    let both = json!({"nodeName": "h", "schedulerName": "kerf-scheduler"});
    for (list, name, more, why) in [
        ("containers", "kerf.dev/gpu-10gb", &both, "spec.nodeName h: "),
        ("containers", "nvidia.com/gpu-10gb", &both, "spec.nodeName h: "),
        ("initContainers", "nvidia.com/gpu-10gb.shared", &both, "spec.nodeName h: "),
        ("containers", "nvidia.com/gpu-10gb", &json!({}), "spec.schedulerName default-scheduler: "),
        ("initContainers", "kerf.dev/anything", &json!({}), "use kerf-scheduler, or ask an admin"),
    ] {
        let message = refused(&create(&cluster, &ALICE, &with_limit(list, name, "1", more)).await?)?;
        assert!(message.contains(why), "{message}");
    }
    for (name, amount, more) in [
        ("nvidia.com/gpu-10gb", "1", &ours),
        ("nvidia.com/gpu-10gb", "0", &named),
        ("kerf.dev/gpu-10gb", "0", &named),
        // GPU Operator's validator asks in this way, with a node name, so the guard must allow it.
        ("nvidia.com/gpu", "1", &named),
        ("nvidia.com/mig-1g.10gb", "1", &named),
        ("nvidia.com/gpu.shared", "1", &named),
        ("nvidia.com/gpumem", "1", &named),
        ("nvidia.com/gpu-fast", "1", &named),
        ("cpu", "1", &named),
    ] {
        taken(&create(&cluster, &ALICE, &with_limit("containers", name, amount, more)).await?)?;
    }
    // The kubelet's mirror of a static pod, and a user who claims that a pod is one.
    let mut mirror = with_limit("containers", "kerf.dev/gpu-10gb", "1", &named);
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    refused(&create(&cluster, &ALICE, &mirror).await?)?;
    taken(&create(&cluster, &NODE, &mirror).await?)?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extender_may_write_only_its_own_fields_of_nodes_and_pods() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let extender = async |arguments: &[&str]| {
        as_user(&cluster, EXTENDER, &[arguments, &["--dry-run=server"]].concat()).await
    };
    let account = cluster.plane().kubeconfig_for_service_account(NAMESPACE, "kerf-extender").await?;
    let client = cluster.plane().client_as(Path::new(&account)).await?;
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(client);
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let metadata = |key: &str, entries: Value| json!({"metadata": {key: entries}});
    let condition = |type_: &str| json!({"status": {"conditions": [{"type": type_, "status": "False", "reason": "R", "message": "m"}]}});
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}});
    let plugins = json!({"nvidia.com/device-plugin.config": "x", "nvidia.com/mig.config": "y"});
    for (in_status, change, refused) in [
        (false, metadata("labels", json!({"kerf.dev/managed": "false"})), Some("the label kerf.dev/managed")),
        (true, metadata("labels", json!({"a": "b"})), Some("the label a")),
        (false, metadata("annotations", json!({"a": "b"})), Some("the annotation a")),
        (false, json!({"spec": {"unschedulable": true}}), Some("does not write spec")),
        (false, taint, Some("does not write spec")),
        (true, json!({"status": {"capacity": {"nvidia.com/gpu": "9"}}}), Some("but the condition")),
        (true, condition("Ready"), Some("but the condition")),
        (false, metadata("labels", plugins), None),
        (false, metadata("annotations", json!({keys::PLUGIN_LAYOUT: "{}"})), None),
        (true, condition(keys::LAYOUT_CONDITION), None),
    ] {
        let patch = Patch::Strategic(&change);
        let answer = if in_status {
            nodes.patch_status("h", &dry_run, &patch).await
        } else {
            nodes.patch("h", &dry_run, &patch).await
        };
        match (answer, refused) {
            (Err(error), Some(why)) => assert!(error.to_string().contains(why), "{change}: {error}"),
            (answer, why) => ensure!(answer.is_ok() && why.is_none(), "{change}: {answer:?}"),
        }
    }
    for (arguments, why) in [
        (["label", "pod", "sliced", "team=vision"], "the label team"),
        (["label", "pod", "plain", "kerf.dev/role=leader"], "the label kerf.dev/role"),
        (["annotate", "pod", "sliced", "example.com/note=1"], "the annotation example.com/note"),
    ] {
        let message = refused(&extender(&arguments).await?)?;
        assert!(message.contains(why), "{arguments:?}: {message}");
    }
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}}).to_string();
    let message = refused(&extender(&["patch", "pod", "sliced", "-p", &image]).await?)?;
    assert!(message.contains("does not write spec"), "{message}");
    taken(&extender(&["annotate", "pod", "sliced", &format!("{}=now", keys::ROOM)]).await?)?;
    let evict = async |namespace: &str, pod: &str| {
        let metadata = json!({"name": pod, "namespace": namespace});
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata,
            "deleteOptions": {"dryRun": ["All"]}});
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
        let arguments = ["--as", EXTENDER, "create", "--raw", &path, "-f", "-"];
        cluster.plane().kubectl_output(&arguments, &eviction.to_string()).await
    };
    for namespace in ["kube-system", NAMESPACE] {
        let other: Api<Pod> = Api::namespaced(cluster.plane().client(), namespace);
        other.create(&PostParams::default(), &pod("other", &[])).await?;
        let message = refused(&evict(namespace, "other").await?)?;
        assert!(message.contains("the extender of kerf evicts no pod of namespace"), "{message}");
    }
    taken(&evict("default", "sliced").await?)?;
    // Of its own pods the extender labels the one that leads.
    let own = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own", "namespace": NAMESPACE},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}});
    cluster.plane().apply(&own.to_string()).await?;
    taken(&extender(&["label", "pod", "-n", NAMESPACE, "own", "kerf.dev/role=leader"]).await?)?;
    refused(&extender(&["label", "pod", "-n", NAMESPACE, "own", "a=b"]).await?)?;
    cluster.stop().await
}
