use super::preempt::NO_VICTIMS;
use super::*;
use crate::api_stand_in::{Fault, pod_path};
use crate::simulated_agent::Leader;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use kerf_core::testing::request;
use serde_json::{Value, json};
use std::ops::Deref;
use tower::ServiceExt;

/// A replica that leads a cluster of one node `n` with one H100.
struct Replica {
    leader: Leader,
    router: Router,
}

impl Deref for Replica {
    type Target = Leader;

    fn deref(&self) -> &Leader {
        &self.leader
    }
}

impl Replica {
    async fn new(bind_timeout: Duration) -> Self {
        let current_term = Arc::new(CurrentTerm::default());
        let (metrics, _) = Metrics::new();
        let leader = Leader::start(metrics.clone(), false).await;
        current_term.begin(leader.term.clone());
        let shared = Shared { current_term, metrics, bind_timeout, lag: Arc::default() };
        Self { leader, router: router(shared) }
    }

    async fn post(&self, verb: &str, body: &Value) -> Value {
        let (status, text) = self.ask(verb, body).await;
        assert_eq!(status, StatusCode::OK);
        serde_json::from_str(&text).unwrap()
    }

    async fn ask(&self, verb: &str, body: &Value) -> (StatusCode, String) {
        let request = Request::post(format!("/scheduler/{verb}")).body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let size = axum::body::HttpBody::size_hint(response.body()).exact();
        assert!(size.is_some(), "an answer of known size has a Content-Length");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Creates a pod in the API server and filters it.
    async fn filter(&self, name: &str) -> Value {
        self.api.put_pod(name, None);
        self.post("filter", &question(name)).await
    }

    async fn bind(&self, name: &str) -> String {
        let uid = format!("uid-{name}");
        let body = json!({"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "n"});
        self.post("bind", &body).await["Error"].as_str().unwrap().to_owned()
    }

    /// Lets the agent cut once it has accepted this many reservations.
    async fn cut_after(&self, reservations: usize) {
        self.agent.was_ordered(&vec!["reserve"; reservations]).await;
        self.agent.cut();
    }

    fn slices(&self) -> usize {
        self.agent.node().ledger.desired().slices.len()
    }

    fn node_of(&self, pod: &str) -> Option<String> {
        Some(self.api.get(&pod_path(pod)).unwrap()["spec"]["nodeName"].as_str()?.to_owned())
    }
}

fn question(name: &str) -> Value {
    let annotations = json!({"kerf.dev/request": request("nvidia.com/mig-1g.10gb", 1).to_json()});
    let metadata = json!({
        "name": name, "namespace": "default", "uid": format!("uid-{name}"), "annotations": annotations,
    });
    json!({"Pod": {"metadata": metadata}, "Nodes": null, "NodeNames": ["n", "other"]})
}

/// A limit that is waited for, and in which a busy machine still answers.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_pod_is_filtered_prioritized_and_bound() {
    let replica = Replica::new(LONG).await;
    let filtered = replica.filter("a").await;
    assert_eq!(filtered["NodeNames"], json!(["n"]));
    let scores = replica.post("prioritize", &question("a")).await;
    assert_eq!(scores, json!([{"Host": "n", "Score": 1005}, {"Host": "other", "Score": 0}]));
    let (error, ()) = tokio::join!(replica.bind("a"), replica.cut_after(1));
    assert_eq!(error, "");
    assert_eq!(replica.node_of("a").as_deref(), Some("n"));
    let pod = replica.api.get(&pod_path("a")).unwrap();
    let assignment: Value =
        serde_json::from_str(pod["metadata"]["annotations"]["kerf.dev/assignment"].as_str().unwrap())
            .unwrap();
    assert_eq!(assignment["slices"][0]["shape"]["profile"], "1g.10gb");
}

#[tokio::test]
async fn a_timeout_ends_the_request_and_not_the_reservation() {
    let replica = Replica::new(SHORT).await;
    replica.filter("a").await;
    assert_eq!(replica.bind("a").await, "slices are being cut; the reservation stays");
    assert_eq!(replica.slices(), 1);
    replica.agent.cut();
    assert_eq!(replica.filter("a").await["NodeNames"], json!(["n"]));
    assert_eq!(replica.bind("a").await, "");
    assert_eq!(replica.slices(), 1, "nothing was reserved twice");
}

#[tokio::test]
async fn a_scheduler_that_hangs_up_gets_no_binding() {
    let replica = Replica::new(LONG).await;
    replica.filter("a").await;
    let given_up = tokio::time::timeout(SHORT, replica.bind("a")).await;
    assert!(given_up.is_err());
    replica.agent.cut();
    tokio::time::sleep(SHORT).await;
    assert_eq!(replica.node_of("a"), None);
    assert_eq!(replica.slices(), 1, "the reservation stays");
}

#[tokio::test]
async fn the_error_of_a_bind_names_why_its_slice_failed() {
    let replica = Replica::new(LONG).await;
    replica.filter("a").await;
    let failing = async {
        replica.agent.was_ordered(&["reserve"]).await;
        replica.agent.fail("the driver said no");
    };
    let (error, ()) = tokio::join!(replica.bind("a"), failing);
    assert!(error.contains("the driver said no"), "{error}");
    assert_eq!(replica.node_of("a"), None);
}

#[tokio::test]
async fn a_binding_whose_reply_was_lost_is_found_at_the_next_try() {
    let replica = Replica::new(SHORT).await;
    replica.filter("a").await;
    replica.bind("a").await;
    replica.agent.cut();
    replica.api.fail([Fault::LoseReply]);
    assert!(replica.bind("a").await.starts_with("failed to reach the API server"));
    assert_eq!(replica.bind("a").await, "");
    assert_eq!(replica.node_of("a").as_deref(), Some("n"));
}

#[tokio::test]
async fn a_pod_that_was_replaced_by_its_namesake_is_not_bound() {
    let replica = Replica::new(SHORT).await;
    replica.filter("a").await;
    replica.bind("a").await;
    replica.agent.cut();
    let mut pod = replica.api.get(&pod_path("a")).unwrap();
    pod["metadata"]["uid"] = json!("another");
    replica.api.put(&pod_path("a"), pod);
    assert_eq!(replica.bind("a").await, "the API server refused the Binding: another UID");
    assert_eq!(replica.node_of("a"), None);
}

#[tokio::test]
async fn a_pod_that_no_filter_saw_is_looked_up() {
    let replica = Replica::new(SHORT).await;
    assert_eq!(replica.bind("a").await, "the slice was taken, or the pod has ended, meanwhile");
    let mut pod = question("a")["Pod"].clone();
    pod["spec"] = json!({"nodeName": null});
    replica.api.put(&pod_path("a"), pod);
    assert_eq!(replica.bind("a").await, "slices are being cut; the reservation stays");
}

/// The scheduler calls the extender for every pod that names one of its resources, whatever the amount.
#[tokio::test]
async fn a_pod_with_the_amount_0_may_go_everywhere_and_is_bound_without_a_reservation() {
    let replica = Replica::new(SHORT).await;
    let mut question = question("a");
    question["Pod"]["metadata"]["annotations"] = Value::Null;
    question["Pod"]["spec"] =
        json!({"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "0"}}}]});
    assert_eq!(replica.post("filter", &question).await["NodeNames"], json!(["n", "other"]));
    assert_eq!(replica.post("prioritize", &question).await, json!([]));
    replica.api.put(&pod_path("a"), question["Pod"].clone());
    assert_eq!(replica.bind("a").await, "");
    assert_eq!(replica.node_of("a").as_deref(), Some("n"));
    assert_eq!(replica.agent.ordered(), [""; 0], "nothing is reserved");
}

/// There is room on `n`; `other` is not a node of kerf's.
fn preemption(pod: &Value) -> Value {
    let victims =
        |uid: &str, violations: u32| json!({"Pods": [{"UID": uid}], "NumPDBViolations": violations});
    json!({
        "Pod": pod, "NodeNameToVictims": null,
        "NodeNameToMetaVictims": {"n": victims("v1", 2), "other": victims("v2", 0)},
    })
}

#[tokio::test]
async fn a_preemption_keeps_the_nodes_that_help_with_their_victims() {
    let replica = Replica::new(SHORT).await;
    let mut question = preemption(&question("a")["Pod"]);
    let n = question["NodeNameToMetaVictims"]["n"].clone();
    let answer = replica.post("preempt", &question).await;
    assert_eq!(answer, json!({"NodeNameToMetaVictims": {"n": n}}));
    question["Pod"]["metadata"]["annotations"] = Value::Null;
    let asks = |name: &str, count: &str| json!({"containers": [{"name": "c", "resources": {"requests": {name: count}}}]});
    question["Pod"]["spec"] = asks("nvidia.com/mig-1g.10gb", "1");
    let answer = replica.post("preempt", &question).await;
    assert_eq!(answer, json!({"NodeNameToMetaVictims": {}}), "the webhook did not see the pod");
    question["Pod"]["spec"] = asks("nvidia.com/gpu", "0");
    let answer = replica.post("preempt", &question).await;
    assert_eq!(answer["NodeNameToMetaVictims"], question["NodeNameToMetaVictims"], "it asks for nothing");
}

/// The scheduler sees a pod's end at the same time, and asks at once.
#[tokio::test]
async fn a_preemption_is_refused_only_after_a_pods_end_had_time_to_be_seen() {
    let replica = Replica::new(SHORT).await;
    for n in 0..7 {
        replica.filter(&format!("p{n}")).await;
    }
    let question = preemption(&question("p7")["Pod"]);
    let end = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        replica.term.with(|index| index.pod_gone(&"uid-p0".into()));
    };
    let (answer, ()) = tokio::join!(replica.post("preempt", &question), end);
    assert!(answer["NodeNameToMetaVictims"]["n"].is_object(), "{answer}");
}

#[tokio::test]
async fn a_preemption_that_cannot_be_answered_fails() {
    let replica = Replica::new(SHORT).await;
    let whole =
        json!({"Pod": question("a")["Pod"], "NodeNameToVictims": {"n": {"Pods": [], "NumPDBViolations": 0}}});
    for (question, why) in [(whole, NO_VICTIMS), (json!({"Pod": {}}), "is it kube-scheduler's extender/v1?")]
    {
        let (status, text) = replica.ask("preempt", &question).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains(why), "{text}");
    }
    replica.term.stop.cancel();
    let answer = replica.ask("preempt", &preemption(&question("a")["Pod"])).await;
    assert_eq!(answer, (StatusCode::SERVICE_UNAVAILABLE, NOT_LEADER.to_owned()));
}

/// kube-scheduler keeps a connection for as long as it can, and would otherwise ask this replica for ever.
#[tokio::test]
async fn a_replica_that_does_not_lead_closes_the_connection() {
    let replica = Replica::new(SHORT).await;
    let connection = async || {
        let request = Request::post("/scheduler/filter").body(Body::from(question("a").to_string())).unwrap();
        let response = replica.router.clone().oneshot(request).await.unwrap();
        response.headers().get(CONNECTION).cloned()
    };
    assert_eq!(connection().await, None);
    replica.term.stop.cancel();
    assert_eq!(connection().await, Some(HeaderValue::from_static("close")));
}

#[tokio::test]
async fn a_replica_that_does_not_lead_refuses_requests() {
    let replica = Replica::new(SHORT).await;
    replica.term.stop.cancel();
    assert_eq!(replica.filter("a").await["Error"], NOT_LEADER);
    assert_eq!(replica.post("prioritize", &question("a")).await, json!([]));
    assert_eq!(replica.bind("a").await, NOT_LEADER);
}

#[tokio::test]
async fn a_request_that_cannot_be_read_names_the_remedy() {
    let replica = Replica::new(SHORT).await;
    let error = replica.post("filter", &json!({"Pod": {}})).await["Error"].clone();
    assert!(error.as_str().unwrap().contains("is it kube-scheduler's extender/v1?"), "{error}");
    let mut whole = question("a");
    whole["NodeNames"] = Value::Null;
    assert_eq!(replica.post("filter", &whole).await["Error"], NO_NAMES);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_and_the_next_one_answered() {
    let replica = Replica::new(SHORT).await;
    let large = json!("x".repeat(BODY_LIMIT));
    for verb in ["filter", "prioritize", "preempt", "bind"] {
        assert_eq!(replica.ask(verb, &large).await.0, StatusCode::PAYLOAD_TOO_LARGE, "{verb}");
    }
    assert_eq!(replica.filter("a").await["NodeNames"], json!(["n"]));
}

#[tokio::test]
async fn a_bind_that_cannot_be_read_or_names_an_unknown_node_orders_and_sends_nothing() {
    let replica = Replica::new(SHORT).await;
    replica.filter("a").await;
    let error = replica.post("bind", &json!({"PodName": "a"})).await["Error"].clone();
    assert!(error.as_str().unwrap().contains("is it kube-scheduler's extender/v1?"), "{error}");
    let body = json!({"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "stranger"});
    let error = replica.post("bind", &body).await["Error"].clone();
    assert_eq!(error, Refusal::NoAgent.to_string());
    assert_eq!(replica.agent.ordered(), [""; 0]);
    assert_eq!(replica.api.requests(&axum::http::Method::POST), 0);
}

#[tokio::test]
async fn many_pods_on_one_node_take_no_writes_but_their_bindings() {
    let replica = Replica::new(LONG).await;
    for n in 0..7 {
        replica.filter(&format!("p{n}")).await;
    }
    assert_eq!(replica.filter("p7").await["NodeNames"], json!([]));
    let binds = (0..7).map(|n| {
        let replica = &replica;
        async move { replica.bind(&format!("p{n}")).await }
    });
    let (errors, ()) = tokio::join!(futures::future::join_all(binds), replica.cut_after(7));
    assert!(errors.iter().all(String::is_empty), "{errors:?}");
    assert_eq!(replica.api.requests(&axum::http::Method::PATCH), 0);
}

/// The request comes in while the term is ending.
#[tokio::test]
async fn a_term_that_has_ended_answers_no_request() {
    let replica = Replica::new(LONG).await;
    replica.term.end();
    let request = question("a");
    let filtered = replica.post("filter", &request).await;
    assert_eq!(filtered["Error"], NOT_LEADER);
    assert_eq!(replica.post("prioritize", &request).await, json!([]));
}
