use super::preempt::NO_VICTIMS;
use super::*;
use crate::api_stand_in::{ApiStandIn, Fault, pod_path};
use crate::in_force::InForce;
use crate::term::Term;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, SliceState};
use kerf_core::packing::Terms;
use kerf_core::testing::{node_status, request, slice_status};
use kerf_runtime::shutdown::CancellationToken;
use serde_json::{Value, json};
use tower::ServiceExt;

/// A replica that leads a cluster of one node `n` with one H100.
struct Replica {
    api: Arc<ApiStandIn>,
    term: Arc<Term>,
    router: Router,
}

impl Replica {
    fn new(bind_timeout: Duration) -> Self {
        let api = ApiStandIn::new();
        api.put_node("n", &GpuNodeSpec::default(), &node_status(&["H100-80GB"]));
        let standing = Arc::new(Standing::default());
        let (metrics, _) = Metrics::new(&standing);
        let term = Term::new(
            api.client(),
            metrics.clone(),
            1,
            Terms::default(),
            InForce::default(),
            CancellationToken::new(),
        );
        term.with(|index| {
            index.show_node(&api.node("n"));
            index.nodes_listed();
            index.pods_listed();
        });
        standing.begin(term.clone());
        Self { api, term, router: router(Shared { standing, metrics, bind_timeout, lag: Arc::default() }) }
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

    /// Makes a pod in the API server and has it filtered.
    async fn filter(&self, name: &str) -> Value {
        self.api.put_pod(name, None);
        self.post("filter", &question(name)).await
    }

    async fn bind(&self, name: &str) -> String {
        let uid = format!("uid-{name}");
        let body = json!({"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "n"});
        self.post("bind", &body).await["Error"].as_str().unwrap().to_owned()
    }

    /// Plays the agent once: what the spec wants is there, in this state.
    fn agent(&self, state: SliceState) {
        let spec = self.api.spec("n");
        let status = GpuNodeStatus {
            slices: spec.slices.iter().map(|s| slice_status(s, false)).collect(),
            ..node_status(&["H100-80GB"])
        };
        let mut status = status;
        for slice in &mut status.slices {
            slice.state = state;
            if state != SliceState::Ready {
                slice.ready_for = None;
            }
        }
        self.api.put_node("n", &spec, &status);
        self.term.with(|index| index.show_node(&self.api.node("n")));
    }

    /// Plays the agent as soon as there is a spec of this revision.
    async fn agent_after(&self, revision: u64, state: SliceState) {
        while self.api.spec("n").revision < revision {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.agent(state);
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

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_pod_walks_from_filter_to_binding() {
    let replica = Replica::new(LONG);
    let filtered = replica.filter("a").await;
    assert_eq!(filtered["NodeNames"], json!(["n"]));
    assert_eq!(filtered["FailedAndUnresolvableNodes"], json!({"other": "no kerf agent on the node"}));
    let scores = replica.post("prioritize", &question("a")).await;
    assert_eq!(scores, json!([{"Host": "other", "Score": 0}, {"Host": "n", "Score": 2000}]));
    let (error, ()) = tokio::join!(replica.bind("a"), replica.agent_after(1, SliceState::Ready));
    assert_eq!(error, "");
    assert_eq!(replica.node_of("a").as_deref(), Some("n"));
    let pod = replica.api.get(&pod_path("a")).unwrap();
    let assignment: Value =
        serde_json::from_str(pod["metadata"]["annotations"]["kerf.dev/assignment"].as_str().unwrap())
            .unwrap();
    assert_eq!(assignment["slices"][0]["shape"]["profile"], "1g.10gb");
}

#[tokio::test]
async fn a_time_out_ends_the_request_and_not_the_reservation() {
    let replica = Replica::new(SHORT);
    replica.filter("a").await;
    assert_eq!(replica.bind("a").await, "slice is being cut; the reservation stays");
    assert_eq!(replica.api.spec("n").slices.len(), 1);
    replica.agent(SliceState::Ready);
    assert_eq!(replica.filter("a").await["NodeNames"], json!(["n"]));
    assert_eq!(replica.bind("a").await, "");
    assert_eq!(replica.api.spec("n").revision, 1, "nothing was promised twice");
}

#[tokio::test]
async fn a_scheduler_that_hangs_up_gets_no_binding() {
    let replica = Replica::new(LONG);
    replica.filter("a").await;
    let given_up = tokio::time::timeout(SHORT, replica.bind("a")).await;
    assert!(given_up.is_err());
    replica.agent(SliceState::Ready);
    tokio::time::sleep(SHORT).await;
    assert_eq!(replica.node_of("a"), None);
    assert_eq!(replica.api.spec("n").slices.len(), 1, "the promise stays");
}

#[tokio::test]
async fn a_slice_that_cannot_be_made_is_told() {
    let replica = Replica::new(LONG);
    replica.filter("a").await;
    let (error, ()) = tokio::join!(replica.bind("a"), replica.agent_after(1, SliceState::Failed));
    assert!(error.starts_with("slice s1 (1g.10gb at 6:1) could not be made"), "{error}");
    assert_eq!(replica.node_of("a"), None);
}

#[tokio::test]
async fn a_binding_whose_reply_was_lost_is_found_at_the_next_try() {
    let replica = Replica::new(SHORT);
    replica.filter("a").await;
    replica.bind("a").await;
    replica.agent(SliceState::Ready);
    replica.api.fail([Fault::LoseReply]);
    assert!(replica.bind("a").await.starts_with("failed to reach the API server"));
    assert_eq!(replica.bind("a").await, "");
    assert_eq!(replica.node_of("a").as_deref(), Some("n"));
}

#[tokio::test]
async fn a_pod_that_was_replaced_by_its_namesake_is_not_bound() {
    let replica = Replica::new(SHORT);
    replica.filter("a").await;
    replica.bind("a").await;
    replica.agent(SliceState::Ready);
    let mut pod = replica.api.get(&pod_path("a")).unwrap();
    pod["metadata"]["uid"] = json!("another");
    replica.api.put(&pod_path("a"), pod);
    assert_eq!(replica.bind("a").await, "the API server refused the Binding: another UID");
    assert_eq!(replica.node_of("a"), None);
}

#[tokio::test]
async fn a_pod_of_which_no_filter_told_is_asked_for() {
    let replica = Replica::new(SHORT);
    assert_eq!(replica.bind("a").await, "the slice was taken, or the pod has ended, meanwhile");
    let mut pod = question("a")["Pod"].clone();
    pod["spec"] = json!({"nodeName": null});
    replica.api.put(&pod_path("a"), pod);
    assert_eq!(replica.bind("a").await, "slice is being cut; the reservation stays");
}

/// The scheduler asks about whoever names a resource of the extender's, whatever the amount.
#[tokio::test]
async fn a_pod_with_the_amount_0_may_go_everywhere_and_is_bound_without_a_promise() {
    let replica = Replica::new(SHORT);
    let mut question = question("a");
    question["Pod"]["metadata"]["annotations"] = Value::Null;
    question["Pod"]["spec"] =
        json!({"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "0"}}}]});
    assert_eq!(replica.post("filter", &question).await["NodeNames"], json!(["n", "other"]));
    assert_eq!(replica.post("prioritize", &question).await, json!([]));
    replica.api.put(&pod_path("a"), question["Pod"].clone());
    assert_eq!(replica.bind("a").await, "");
    assert_eq!(replica.node_of("a").as_deref(), Some("n"));
    assert_eq!(replica.api.spec("n").revision, 0, "nothing is promised");
}

/// On `n` there is room, `other` is not kerf's.
fn preemption(pod: &Value) -> Value {
    let victims =
        |uid: &str, violations: u32| json!({"Pods": [{"UID": uid}], "NumPDBViolations": violations});
    json!({
        "Pod": pod, "NodeNameToVictims": null,
        "NodeNameToMetaVictims": {"n": victims("v1", 2), "other": victims("v2", 0)},
    })
}

#[tokio::test]
async fn of_a_preemption_the_nodes_stay_that_help_with_the_victims_that_were_named() {
    let replica = Replica::new(SHORT);
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

/// The scheduler hears of a pod's end at the same time, and asks at once.
#[tokio::test]
async fn a_preemption_is_refused_only_when_a_pods_end_had_time_to_be_seen() {
    let replica = Replica::new(SHORT);
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
    let replica = Replica::new(SHORT);
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

/// kube-scheduler keeps a connection for as long as it can, and would ask this replica for ever.
#[tokio::test]
async fn who_does_not_lead_ends_the_connection() {
    let replica = Replica::new(SHORT);
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
async fn who_does_not_lead_says_so() {
    let replica = Replica::new(SHORT);
    replica.term.stop.cancel();
    assert_eq!(replica.filter("a").await["Error"], NOT_LEADER);
    assert_eq!(replica.post("prioritize", &question("a")).await, json!([]));
    assert_eq!(replica.bind("a").await, NOT_LEADER);
}

#[tokio::test]
async fn a_request_that_cannot_be_read_names_the_remedy() {
    let replica = Replica::new(SHORT);
    let error = replica.post("filter", &json!({"Pod": {}})).await["Error"].clone();
    assert!(error.as_str().unwrap().contains("is it kube-scheduler's extender/v1?"), "{error}");
    let mut whole = question("a");
    whole["NodeNames"] = Value::Null;
    assert_eq!(replica.post("filter", &whole).await["Error"], NO_NAMES);
}

#[tokio::test]
async fn many_pods_on_one_node_take_few_writes() {
    let replica = Replica::new(LONG);
    for n in 0..7 {
        replica.filter(&format!("p{n}")).await;
    }
    assert_eq!(replica.filter("p7").await["NodeNames"], json!([]));
    let binds = (0..7).map(|n| {
        let replica = &replica;
        async move { replica.bind(&format!("p{n}")).await }
    });
    let agent = async {
        while replica.api.spec("n").slices.len() < 7 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        replica.agent(SliceState::Ready);
    };
    let (errors, ()) = tokio::join!(futures::future::join_all(binds), agent);
    assert!(errors.iter().all(String::is_empty), "{errors:?}");
    assert!(replica.api.requests(&axum::http::Method::PATCH) <= 2);
}
