use super::*;
use crate::uninstall::api_stand_in::ApiStandIn;
use crate::uninstall::job::LEAVE;
use clap::Parser as _;
use serde_json::Value;

const NODE: &str = "/api/v1/nodes/n1";
const GPU_NODE: &str = "/apis/kerf.dev/v1alpha1/gpunodes/n1";
const JOBS: &str = "/apis/batch/v1/namespaces/kerf-system/jobs";
const JOB: &str = "/apis/batch/v1/namespaces/kerf-system/jobs/kerf-leave-u1";
const AGENTS_POD: &str = "/api/v1/namespaces/kerf-system/pods/agent";
const POD: &str = "/api/v1/pods/train";

const STEPS: [&str; 5] =
    ["PATCH n1", "POST jobs", "PATCH kerf-leave-u1", "DELETE n1 as of 7", "DELETE kerf-leave-u1"];

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn cluster() -> ApiStandIn {
    let api = ApiStandIn::default();
    add_node(&api, &json!({keys::MANAGED: "true"}), "True");
    let metadata = json!({"name": "n1", "resourceVersion": "7"});
    api.put(GPU_NODE, json!({"metadata": metadata, "spec": {}, "status": {}}));
    let template = json!({"spec": {"containers": [{"name": "node-agent", "image": "kerf-node-agent:1"}]}});
    let spec = json!({"selector": {}, "template": template});
    let agents = json!({"metadata": {"name": AGENT, "namespace": "kerf-system"}, "spec": spec});
    api.put(&format!("/apis/apps/v1/namespaces/kerf-system/daemonsets/{AGENT}"), agents);
    api.put(AGENTS_POD, agents_pod(&json!({NAME_LABEL: AGENT})));
    api
}

fn add_node(api: &ApiStandIn, labels: &Value, ready: &str) {
    let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
    api.put(NODE, json!({"metadata": {"name": "n1", "uid": "u1", "labels": labels}, "status": status}));
}

fn agents_pod(labels: &Value) -> Value {
    json!({"metadata": {"name": "agent", "labels": labels}, "spec": {"nodeName": "n1"}})
}

fn add_pod(api: &ApiStandIn, phase: &str) {
    let annotations = json!({keys::ASSIGNMENT: "{}"});
    let metadata = json!({"namespace": "ml", "name": "train", "annotations": annotations});
    api.put(POD, json!({"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": phase}}));
}

fn add_job(api: &ApiStandIn, conditions: &Value) {
    let metadata = json!({"name": "kerf-leave-u1", "labels": {NAME_LABEL: LEAVE}});
    let spec = json!({"template": {"spec": {"nodeName": "n1", "containers": []}}});
    api.put(JOB, json!({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}));
}

async fn released(api: &ApiStandIn, flags: &[&str]) -> Result<(), String> {
    let words = [&["kerf", "n1", "--settle", "1s", "--timeout", "5s"][..], flags].concat();
    release(api.client(), &Cli::parse_from(words).args).await.map_err(|error| format!("{error:#}"))
}

fn is_released(api: &ApiStandIn) {
    let node = &api.inside("/api/v1/nodes")[0];
    assert_eq!(node["metadata"]["labels"][keys::MANAGED], "false");
    for folder in [JOBS, "/apis/kerf.dev/v1alpha1/gpunodes", "/api/v1/namespaces/kerf-system/pods"] {
        assert_eq!(api.inside(folder), Vec::<Value>::new(), "{folder}");
    }
    assert_eq!(api.inside("/apis/apps/v1/namespaces/kerf-system/daemonsets").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_is_released_step_by_step_and_only_once() {
    let api = cluster();
    released(&api, &[]).await.unwrap();
    assert_eq!(api.changes(), STEPS);
    is_released(&api);
    released(&api, &[]).await.unwrap();
    assert_eq!(api.changes(), STEPS);
}

#[tokio::test(start_paused = true)]
async fn the_next_run_continues_a_run_that_ended_after_any_step() {
    for done in 0..STEPS.len() {
        let api = cluster();
        api.end_after(Some(done));
        released(&api, &[]).await.unwrap_err();
        api.end_after(None);
        released(&api, &[]).await.unwrap();
        is_released(&api);
        // The Job must not run twice, unless an agent may have run in between.
        let posted = api.changes().iter().filter(|change| *change == "POST jobs").count();
        assert_eq!(posted, if done == 3 { 2 } else { 1 }, "after {done} changes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_job_is_continued_and_an_ended_one_is_replaced() {
    let api = cluster();
    add_job(&api, &json!([]));
    released(&api, &[]).await.unwrap();
    assert!(!api.changes().contains(&"POST jobs".to_owned()));
    let api = cluster();
    add_job(&api, &json!([{"type": "Complete", "status": "True"}]));
    released(&api, &[]).await.unwrap();
    assert_eq!(api.changes(), [&STEPS[..1], &STEPS[4..], &STEPS[1..]].concat());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_must_not_be_released_is_refused_before_any_change() {
    type Change = fn(&ApiStandIn);
    let cases: [(&str, Change); 6] = [
        ("there is no node n1", |api| api.remove(NODE)),
        ("node n1 is not kerf's", |api| {
            add_node(api, &json!({}), "True");
            api.remove(GPU_NODE);
            api.remove(AGENTS_POD);
        }),
        ("node n1 is not ready", |api| add_node(api, &json!({keys::MANAGED: "true"}), "Unknown")),
        ("there is no DaemonSet kerf-node-agent in namespace kerf-system", |api| {
            api.remove(&format!("/apis/apps/v1/namespaces/kerf-system/daemonsets/{AGENT}"));
        }),
        ("have reservations there: ml/train. Drain it (kubectl drain n1 ", |api| add_pod(api, "Running")),
        ("ml/train. Let it come back: kubectl label node n1 kerf.dev/managed=true", |api| {
            add_pod(api, "Running");
            api.remove(AGENTS_POD);
        }),
    ];
    for (why, change) in cases {
        let api = cluster();
        change(&api);
        let error = released(&api, &[]).await.unwrap_err();
        assert!(error.contains(why), "{error}");
        assert_eq!(api.changes(), Vec::<String>::new(), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_run_waits_for_pods_while_the_agent_can_observe_their_end() {
    let api = cluster();
    add_pod(&api, "Running");
    let ends = async {
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(api.changes(), Vec::<String>::new());
        add_pod(&api, "Succeeded");
    };
    let (given_back, ()) = tokio::join!(released(&api, &["--wait", "10m"]), ends);
    given_back.unwrap();
    is_released(&api);
    let api = cluster();
    add_pod(&api, "Running");
    assert!(released(&api, &["--wait", "1m"]).await.unwrap_err().contains("ml/train"));
    assert_eq!(api.changes(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_restored_beside_an_agent_or_under_a_late_pod() {
    let api = cluster();
    api.put(AGENTS_POD, agents_pod(&json!({})));
    let error = released(&api, &[]).await.unwrap_err();
    assert!(error.contains("the agent on node n1 has not ended"), "{error}");
    assert_eq!(api.changes(), STEPS[..1]);
    let api = cluster();
    add_node(&api, &json!({keys::MANAGED: "false"}), "True");
    api.remove(AGENTS_POD);
    add_pod(&api, "Running");
    let error = released(&api, &[]).await.unwrap_err();
    assert!(error.contains("no agent is there to see them end: ml/train"), "{error}");
    assert_eq!(api.changes(), Vec::<String>::new());
}
