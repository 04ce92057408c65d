use super::*;
use crate::uninstall::api_stand_in::ApiStandIn;
use clap::Parser as _;

const NODE: &str = "/api/v1/nodes/n1";
const PLUGINS_POD: &str = "/api/v1/pods/plugin-1";
const POD: &str = "/api/v1/pods/train";
const JOB: &str = "/apis/batch/v1/namespaces/kerf-system/jobs/kerf-leave-u1";
const DEPLOY: &str = "nvidia.com/gpu.deploy.device-plugin";

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn cluster() -> ApiStandIn {
    let api = ApiStandIn::default();
    add_node(&api, &json!({DEPLOY: "true"}));
    let agent = json!([{"name": "node-agent", "image": "kerf-node-agent:1"}]);
    add_set(&api, "/apis/apps/v1/namespaces/kerf-system/daemonsets", AGENT, &json!({"containers": agent}));
    let plugin =
        json!([{"name": "nvidia-device-plugin", "image": "nvcr.io/nvidia/k8s-device-plugin:v0.19.3"}]);
    let spec = json!({"nodeSelector": {DEPLOY: "true"}, "containers": plugin});
    add_set(&api, "/apis/apps/v1/daemonsets", "plugin", &spec);
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "plugin", "uid": "u"});
    let metadata = json!({"namespace": "gpu-operator", "name": "plugin-1", "ownerReferences": [owner]});
    api.put(PLUGINS_POD, json!({"metadata": metadata, "spec": {"nodeName": "n1"}}));
    api
}

fn add_set(api: &ApiStandIn, folder: &str, name: &str, spec: &Value) {
    let metadata = json!({"name": name, "namespace": "gpu-operator"});
    let spec = json!({"selector": {}, "template": {"spec": spec}});
    api.put(&format!("{folder}/{name}"), json!({"metadata": metadata, "spec": spec}));
}

fn add_node(api: &ApiStandIn, labels: &Value) {
    let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let metadata = json!({"name": "n1", "uid": "u1", "labels": labels});
    api.put(NODE, json!({"metadata": metadata, "spec": {}, "status": status}));
}

fn add_pod(api: &ApiStandIn, phase: &str) {
    let container = json!({"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}});
    let spec = json!({"nodeName": "n1", "containers": [container]});
    let metadata = json!({"namespace": "ml", "name": "train"});
    api.put(POD, json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}}));
}

/// Plays the controllers and the node: once the node has its labels, the plugin's pod leaves, and kerf's agent starts
/// and serves it.
async fn play(api: &ApiStandIn) {
    let labels = || api.inside("/api/v1/nodes")[0]["metadata"]["labels"].clone();
    while labels()[DEPLOY] != "false" {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(labels()["kerf.dev/managed"], "true");
    tokio::time::sleep(Duration::from_secs(20)).await;
    api.remove(PLUGINS_POD);
    tokio::time::sleep(Duration::from_secs(20)).await;
    serve(api);
}

fn serve(api: &ApiStandIn) {
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let metadata = json!({"name": "agent", "labels": {NAME_LABEL: AGENT}});
    let spec = json!({"nodeName": "n1", "containers": []});
    let pod =
        json!({"metadata": metadata, "spec": spec, "status": {"phase": "Running", "conditions": ready}});
    api.put("/api/v1/namespaces/kerf-system/pods/agent", pod);
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": ""});
    let status = json!({"conditions": [condition("Ready"), condition("Uncontested")]});
    let gpu_node = json!({"metadata": {"name": "n1"}, "spec": {}, "status": status});
    api.put("/apis/kerf.dev/v1alpha1/gpunodes/n1", gpu_node);
}

async fn managed(api: &ApiStandIn, words: &[&str]) -> Result<(), String> {
    let args = Cli::parse_from([&["kerf"], words].concat()).args;
    manage(api.client(), &args).await.map_err(|error| format!("{error:#}"))
}

/// Runs the command while `changes` changes the cluster.
async fn managed_with(
    api: &ApiStandIn,
    words: &[&str],
    changes: impl Future<Output = ()>,
) -> Result<(), String> {
    let (result, ()) = tokio::join!(managed(api, words), changes);
    result
}

fn is_unschedulable(api: &ApiStandIn) -> bool {
    api.inside("/api/v1/nodes")[0]["spec"]["unschedulable"] == true
}

#[tokio::test(start_paused = true)]
async fn a_node_is_handed_over_only_once() {
    for words in [&["n1"][..], &["-l", "pool=gpu"]] {
        let api = cluster();
        managed_with(&api, words, play(&api)).await.unwrap();
        assert_eq!(api.changes(), ["PATCH n1"]);
        managed(&api, words).await.unwrap();
        assert_eq!(api.changes(), ["PATCH n1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_run_is_continued() {
    let api = cluster();
    // The node has its labels, but the plugin has not left it yet.
    let error = managed(&api, &["n1", "--timeout", "10s"]).await.unwrap_err();
    assert!(error.contains("(DaemonSet gpu-operator/plugin) has not left node n1"), "{error}");
    api.remove(PLUGINS_POD);
    let error = managed(&api, &["n1", "--timeout", "10s"]).await.unwrap_err();
    assert!(error.contains("does not serve it yet: there is no pod of the agent on it"), "{error}");
    serve(&api);
    managed(&api, &["n1"]).await.unwrap();
    assert_eq!(api.changes(), ["PATCH n1"]);
}

#[tokio::test(start_paused = true)]
async fn pods_keep_their_gpus_until_they_end() {
    let api = cluster();
    add_pod(&api, "Running");
    for words in [&["n1"][..], &["n1", "--cordon"]] {
        let error = managed(&api, words).await.unwrap_err();
        assert!(
            error.contains("pods hold GPUs of node n1: ml/train. Let them end: kerf manage n1 "),
            "{error}"
        );
        assert_eq!(api.changes(), Vec::<String>::new());
    }
    let ends = async {
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(api.changes(), Vec::<String>::new());
        add_pod(&api, "Succeeded");
        play(&api).await;
    };
    managed_with(&api, &["n1", "--wait", "10m"], ends).await.unwrap();
    assert_eq!(api.changes(), ["PATCH n1"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_is_cordoned_only_on_request_and_only_during_the_handover() {
    let api = cluster();
    add_pod(&api, "Running");
    let error = managed(&api, &["n1", "--wait", "1m", "--cordon"]).await.unwrap_err();
    assert!(error.contains("ml/train"), "{error}");
    // It stays cordoned, because its pods have not ended and no new pod may start before the next run.
    assert!(is_unschedulable(&api));
    assert_eq!(api.changes(), ["PATCH n1"]);
    let api = cluster();
    managed_with(&api, &["n1", "--cordon"], play(&api)).await.unwrap();
    assert!(!is_unschedulable(&api));
    assert_eq!(api.changes(), ["PATCH n1", "PATCH n1", "PATCH n1"]);
    // Another user has cordoned the node.
    let api = cluster();
    api.put(NODE, {
        let mut node = api.inside("/api/v1/nodes").remove(0);
        node["spec"]["unschedulable"] = json!(true);
        node
    });
    managed_with(&api, &["n1", "--cordon"], play(&api)).await.unwrap();
    assert!(is_unschedulable(&api));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    let api = cluster();
    add_pod(&api, "Running");
    managed(&api, &["n1", "--dry-run"]).await.unwrap();
    managed(&api, &["n1", "--dry-run", "--wait", "1h", "--cordon"]).await.unwrap();
    assert_eq!(api.changes(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn no_node_is_changed_if_one_is_refused() {
    let api = cluster();
    let error = managed(&api, &["n1", "n2", "n3"]).await.unwrap_err();
    assert!(error.contains("there is no node n2; ") && error.contains("\nthere is no node n3; "), "{error}");
    let leave =
        json!({"metadata": {"name": "kerf-leave-u1"}, "spec": {"template": {"spec": {"containers": []}}}});
    api.put(JOB, leave);
    let error = managed(&api, &["n1"]).await.unwrap_err();
    assert!(error.contains("being given back by Job kerf-leave-u1"), "{error}");
    api.remove(&format!("/apis/apps/v1/namespaces/kerf-system/daemonsets/{AGENT}"));
    let error = managed(&api, &["n1"]).await.unwrap_err();
    assert!(error.contains("there is no DaemonSet kerf-node-agent in namespace kerf-system"), "{error}");
    assert_eq!(api.changes(), Vec::<String>::new());
    let api = cluster();
    api.remove(NODE);
    let error = managed(&api, &["-l", "pool=gpu"]).await.unwrap_err();
    assert!(error.contains("no node has the labels pool=gpu"), "{error}");
}
