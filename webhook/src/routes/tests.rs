use super::*;
use crate::supply_watch::{Publisher, channel};
use axum::body::{Body, to_bytes};
use axum::http::Request as HttpRequest;
use base64::Engine;
use kerf_core::contract::{Demand, GpuNodeSpec};
use kerf_core::ledger;
use kerf_core::packing::Fleet;
use kerf_core::policy::{Supply, SupplyIndex};
use kerf_core::testing::{node_status, promisee, request};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::convert::Infallible;
use tower::ServiceExt;

struct Fixture {
    webhook: Webhook,
    publisher: Publisher,
    routes: Router,
    registry: Registry,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.yaml");
        std::fs::write(&path, include_str!("../../../policies/default.yaml")).unwrap();
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let policy = PolicyStore::open(&path).unwrap();
        policy.register(&mut registry);
        let (publisher, supply) = channel("me");
        let (labels, namespaces) = crate::namespaces::channel();
        drop(labels);
        let webhook = Webhook { policy, supply, namespaces, metrics };
        Self { routes: routes(webhook.clone()), webhook, publisher, registry, _folder: folder }
    }

    async fn post(&self, body: impl Into<Body>) -> (StatusCode, String) {
        let request = HttpRequest::post("/mutate").body(body.into()).unwrap();
        let response = self.routes.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 16 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn ask(&self, question: Value) -> Value {
        let (status, text) = self.post(question.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        text
    }
}

fn question(operation: &str, object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "7f0b2891-916f-4ed6-b7cd-27bff1815a8c", "operation": operation, "namespace": "default",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "",
            "dryRun": false, "oldObject": null, "object": object, "userInfo": {}, "options": null,
        }
    })
}

fn pod(limits: &Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}})
}

#[tokio::test]
async fn a_pod_without_a_gpu_gets_an_answer_without_a_patch() {
    let answer = Fixture::new().ask(question("CREATE", &pod(&json!({"cpu": "1"})))).await;
    assert_eq!(
        answer,
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": "7f0b2891-916f-4ed6-b7cd-27bff1815a8c", "allowed": true},
        })
    );
}

#[tokio::test]
async fn a_patch_goes_back_as_base64_text() {
    let answer = Fixture::new().ask(question("CREATE", &pod(&json!({"gpu-10gb": "1"})))).await;
    let response = &answer["response"];
    assert_eq!((&response["allowed"], &response["patchType"]), (&json!(true), &json!("JSONPatch")));
    let text = base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    let patch: Value = serde_json::from_slice(&text).unwrap();
    let removed = json!({"op": "remove", "path": "/spec/containers/0/resources/limits/gpu-10gb"});
    assert!(patch.as_array().unwrap().contains(&removed), "{patch}");
}

#[tokio::test]
async fn a_denial_says_why() {
    let answer = Fixture::new().ask(question("CREATE", &pod(&json!({"gpu-0gb": "1"})))).await;
    let response = &answer["response"];
    assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(403)));
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("container main, resources.limits[gpu-0gb]"), "{message}");
}

#[tokio::test]
async fn only_a_pods_creation_is_judged() {
    let fixture = Fixture::new();
    let bad = pod(&json!({"gpu-0gb": "1"}));
    let mut binding = question("CREATE", &bad);
    binding["request"]["subResource"] = json!("binding");
    let mut other = question("CREATE", &bad);
    other["request"]["resource"] = json!({"group": "apps", "version": "v1", "resource": "deployments"});
    for question in [question("UPDATE", &bad), binding, other] {
        assert_eq!(fixture.ask(question).await["response"]["allowed"], json!(true));
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_a_bad_request() {
    let fixture = Fixture::new();
    let mut old = question("CREATE", &json!({}));
    old["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut empty = question("CREATE", &json!({}));
    empty["request"] = json!(null);
    for body in ["{".to_owned(), "[]".to_owned(), old.to_string(), empty.to_string()] {
        let (status, text) = fixture.post(body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
    }
    assert!(fixture.metrics().contains("kerf_webhook_admissions_total{outcome=\"error\"} 4"));
}

#[tokio::test]
async fn a_large_object_fits_and_a_huge_one_does_not() {
    let fixture = Fixture::new();
    let padded = |bytes: usize| {
        let mut object = pod(&json!({"cpu": "1"}));
        object["metadata"]["annotations"] = json!({"note": "x".repeat(bytes)});
        question("CREATE", &object).to_string()
    };
    assert_eq!(fixture.post(padded(4 << 20)).await.0, StatusCode::OK);
    assert_eq!(fixture.post(padded(9 << 20)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn every_outcome_is_counted() {
    let fixture = Fixture::new();
    for limits in [json!({"cpu": "1"}), json!({"gpu-10gb": "1"}), json!({"gpu-0gb": "1"})] {
        fixture.ask(question("CREATE", &pod(&limits))).await;
    }
    let text = fixture.metrics();
    for line in [
        "kerf_webhook_admissions_total{outcome=\"untouched\"} 1",
        "kerf_webhook_admissions_total{outcome=\"patched\"} 1",
        "kerf_webhook_admissions_total{outcome=\"denied\"} 1",
        "kerf_webhook_admissions_total{outcome=\"error\"} 0",
        "kerf_webhook_admission_duration_seconds_count{kind=\"mig\"} 1",
        "kerf_webhook_admission_duration_seconds_count{kind=\"none\"} 2",
        "kerf_policy_reloads_total{result=\"refused\"} 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_template_is_qualified_when_it_is_created_and_when_it_is_changed() {
    let fixture = Fixture::new();
    let template = json!({"spec": {"template": pod(&json!({"gpu-10gb": "1"}))}});
    for operation in ["CREATE", "UPDATE"] {
        let mut question = question(operation, &template);
        question["request"]["resource"] =
            json!({"group": "apps", "version": "v1", "resource": "deployments"});
        let answer = fixture.ask(question.clone()).await;
        let text = base64::engine::general_purpose::STANDARD
            .decode(answer["response"]["patch"].as_str().unwrap())
            .unwrap();
        let patch: Value = serde_json::from_slice(&text).unwrap();
        let limits = "/spec/template/spec/containers/0/resources/limits";
        let mut operations = patch.as_array().unwrap().clone();
        operations.sort_by_key(|operation| operation["op"].to_string());
        assert_eq!(
            operations,
            [
                json!({"op": "add", "path": format!("{limits}/kerf.dev~1gpu-10gb"), "value": "1"}),
                json!({"op": "remove", "path": format!("{limits}/gpu-10gb")}),
            ]
        );
        question["request"]["subResource"] = json!("scale");
        assert!(fixture.ask(question).await["response"]["patch"].is_null());
    }
}

const MIG: &str = "nvidia.com/mig-1g.10gb";
const SHARE: &str = "nvidia.com/gpu-10gb";

/// Seven MIG slices and a share, and two replicas that were asked for as many pods.
fn of_two() -> Fixture {
    let fixture = Fixture::new();
    let supply = Supply::of(&[node_status(&["H100-80GB", "T4-16GB"])]);
    fixture.publisher.supply(supply, [("n".into(), 0)].into());
    say(&fixture, 0, 0, 0);
    fixture
}

/// The extender's word: so many wait, and so many have come that this replica admitted.
fn say(fixture: &Fixture, pending: u32, arrived: u64, revision: u64) {
    let mig = MIG.parse().unwrap();
    let arrived = [("me".to_owned(), [(mig, arrived)].into()), ("another".to_owned(), [].into())].into();
    let revisions = Some([("n".into(), revision)].into());
    let demand = Demand { pending: [(mig, pending)].into(), arrived, revisions, ..Demand::of(1) };
    fixture.publisher.demand(Some(demand));
}

/// What a pod is given, and whether it waits for it.
async fn given(webhook: &Webhook) -> (String, bool) {
    let annotations = json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/isolation": "memory"});
    let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [{"name": "main"}]}});
    let request = review::read(question("CREATE", &pod).to_string().as_bytes()).unwrap();
    let Admission::Patched { document, .. } = webhook.admit(&request).await else { panic!("it is admitted") };
    assert_eq!(document.admitted_by(), Some("me"));
    let waits = !document.chosen.as_ref().unwrap().waits.is_empty();
    (document.containers[0].resource.to_string(), waits)
}

fn all(given: &[(&str, usize)]) -> Vec<(String, bool)> {
    given.iter().flat_map(|(name, count)| vec![((*name).to_owned(), false); *count]).collect()
}

/// A burst of so many.
async fn burst(webhook: &Webhook, count: usize) -> Vec<(String, bool)> {
    let mut burst = Vec::new();
    for _ in 0..count {
        burst.push(given(webhook).await);
    }
    burst
}

/// The extender, which tells of every pod so long after it was admitted.
async fn extender(fixture: &Fixture, admitted: &RefCell<Vec<time::Instant>>, late: Duration) -> Infallible {
    loop {
        time::sleep(Duration::from_millis(100)).await;
        let heard = admitted.borrow().iter().filter(|at| at.elapsed() >= late).count();
        say(fixture, u32::try_from(heard).unwrap(), heard as u64, 0);
    }
}

/// The API server asks one of two replicas for all of a burst: the other has taken none of it.
#[tokio::test(start_paused = true)]
async fn no_pod_is_sent_elsewhere_for_a_mere_guess_while_there_is_room() {
    for late in [0, 50, 200, 400] {
        let fixture = of_two();
        let admitted = RefCell::new(Vec::new());
        let burst = async {
            let mut burst = Vec::new();
            for _ in 0..7 {
                burst.push(given(&fixture.webhook).await);
                admitted.borrow_mut().push(time::Instant::now());
            }
            burst
        };
        tokio::select! {
            never = extender(&fixture, &admitted, Duration::from_millis(late)) => match never {},
            burst = burst => assert_eq!(burst, all(&[(MIG, 7)]), "{late} ms"),
        }
        assert_eq!(given(&fixture.webhook).await.0, SHARE, "all seven are taken");
    }
}

/// What other replicas may have taken is left to them if nothing is heard.
#[tokio::test(start_paused = true)]
async fn a_pod_does_not_wait_for_what_another_replica_may_have_taken() {
    let webhook = &of_two().webhook;
    // Its part of the seven, the share, and then the other part, of which nobody has heard that it is taken.
    assert_eq!(burst(webhook, 8).await, all(&[(MIG, 3), (SHARE, 1), (MIG, 4)]));
    assert_eq!(given(webhook).await, (MIG.to_owned(), true), "all is taken");
}

/// While the extender is late, what others have taken is not known sooner either.
#[tokio::test(start_paused = true)]
async fn what_others_may_have_taken_is_waited_for_as_long_as_the_extender_takes_lately() {
    for (late, waited) in [(100, 500), (700, 1400)] {
        let fixture = of_two();
        assert_eq!(burst(&fixture.webhook, 3).await, all(&[(MIG, 3)]));
        time::sleep(Duration::from_millis(late)).await;
        // The other has taken as many; the last may be on its way to it.
        say(&fixture, 6, 3, 0);
        let asked = time::Instant::now();
        assert_eq!(given(&fixture.webhook).await, (MIG.to_owned(), false));
        let waited = Duration::from_millis(waited);
        let took = asked.elapsed();
        assert!(took >= waited && took <= waited + 2 * LOOK, "{late} ms late: {took:?}");
    }
}

/// The promise is seen before the extender's word without the pod.
#[tokio::test(start_paused = true)]
async fn a_promised_pod_that_is_still_in_the_extenders_word_takes_no_others_place() {
    let fixture = of_two();
    let (status, webhook) = (node_status(&["H100-80GB", "T4-16GB"]), &fixture.webhook);
    say(&fixture, 6, 6, 0);
    let mut index = SupplyIndex::default();
    let promise = |spec: &GpuNodeSpec, pod: &str| {
        ledger::reserve(spec, &status, &request(MIG, 1), &promisee(pod), &Fleet::default()).unwrap()
    };
    let spec = (0..6).fold(GpuNodeSpec::default(), |spec, pod| promise(&spec, &format!("p{pod}")));
    index.show("n".into(), &spec, &status, true);
    fixture.publisher.supply(index.supply(), [("n".into(), 1)].into());
    // Six are promised, and six wait by the last word.
    let (given, ()) = tokio::join!(given(webhook), async {
        tokio::task::yield_now().await;
        say(&fixture, 0, 6, 1);
    });
    assert_eq!(given, (MIG.to_owned(), false));
}
