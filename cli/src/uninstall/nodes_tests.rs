use super::*;
use crate::uninstall::api_stand_in::ApiStandIn;
use clap::Parser as _;
use serde_json::Value;

const JOBS: &str = "/apis/batch/v1/namespaces/kerf-system/jobs";

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: NodesArgs,
}

fn cluster() -> ApiStandIn {
    let api = ApiStandIn::default();
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    api.put("/api/v1/nodes/n1", json!({"metadata": {"name": "n1", "uid": "u1"}, "status": ready}));
    api.put("/apis/kerf.dev/v1alpha1/gpunodes/n1", json!({"metadata": {"name": "n1"}}));
    let pod = json!({"spec": {"containers": [{"name": "node-agent", "image": "kerf-node-agent:1"}]}});
    let agents = json!({"metadata": {"name": AGENT, "namespace": "kerf-system"}, "spec": {"selector": {}, "template": pod}});
    api.put(&format!("/apis/apps/v1/namespaces/kerf-system/daemonsets/{AGENT}"), agents);
    api
}

fn add_job(api: &ApiStandIn, uid: &str, node: &str, status: &Value) {
    let name = format!("kerf-leave-{uid}");
    let spec = json!({"template": {"spec": {"nodeName": node, "containers": []}}});
    let job =
        json!({"metadata": {"name": name, "labels": {NAME_LABEL: LEAVE}}, "spec": spec, "status": status});
    api.put(&format!("{JOBS}/{name}"), job);
}

async fn left(api: &ApiStandIn) -> anyhow::Result<Vec<String>> {
    let args = Cli::parse_from(["kerf", "--settle", "1s", "--timeout", "5s"]).args;
    leave(api.client(), &args).await?;
    let of_jobs = |change: &String| change.ends_with(" jobs") || change.contains("kerf-leave-");
    Ok(api.changes().into_iter().filter(of_jobs).collect())
}

#[tokio::test(start_paused = true)]
async fn a_job_of_an_earlier_uninstall_is_replaced() {
    let api = cluster();
    add_job(&api, "u1", "n1", &json!({"conditions": [{"type": "Complete", "status": "True"}]}));
    add_job(&api, "u0", "n1", &json!({}));
    let again = ["DELETE kerf-leave-u0", "DELETE kerf-leave-u1", "POST jobs"];
    let carried_out = ["PATCH kerf-leave-u1", "DELETE kerf-leave-u1"];
    assert_eq!(left(&api).await.unwrap(), [&again[..], &carried_out].concat());
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_run_continues_with_its_jobs() {
    let api = cluster();
    add_job(&api, "u1", "n1", &json!({}));
    let agents = Api::<DaemonSet>::namespaced(api.client(), "kerf-system");
    agents.delete(AGENT, &DeleteParams::default()).await.unwrap();
    assert_eq!(left(&api).await.unwrap(), ["PATCH kerf-leave-u1", "DELETE kerf-leave-u1"]);
}

#[tokio::test(start_paused = true)]
async fn the_job_of_a_deleted_node_is_deleted() {
    let api = cluster();
    add_job(&api, "u9", "gone", &json!({}));
    let agents = Api::<DaemonSet>::namespaced(api.client(), "kerf-system");
    agents.delete(AGENT, &DeleteParams::default()).await.unwrap();
    assert_eq!(left(&api).await.unwrap(), ["PATCH kerf-leave-u9", "DELETE kerf-leave-u9"]);
    assert_eq!(api.inside(JOBS), Vec::<Value>::new());
}
