use super::*;
use crate::supply_watch::{Publisher, channel};
use axum::body::{Body, to_bytes};
use axum::http::Request as HttpRequest;
use base64::Engine;
use kerf_core::policy::Supply;
use kerf_core::testing::{node_status, with_neutral_names};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
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
        let (publisher, supply) = channel();
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
async fn a_denial_has_its_reason() {
    let answer = Fixture::new().ask(question("CREATE", &pod(&json!({"gpu-0gb": "1"})))).await;
    let response = &answer["response"];
    assert_eq!((&response["allowed"], &response["status"]["code"]), (&json!(false), &json!(403)));
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("container main, resources.limits[gpu-0gb]"), "{message}");
}

#[tokio::test]
async fn only_the_creation_of_a_pod_is_decided() {
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
async fn an_unreadable_review_is_a_bad_request() {
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
        "kerf_webhook_admission_duration_seconds_count{kind=\"any\"} 1",
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

/// The extender chooses a pod's kind, so no replica needs the other replicas' pods. A forged document that names a
/// replica, as in earlier versions, delays no pod either.
#[tokio::test(start_paused = true)]
async fn no_pod_is_held_for_a_replica_that_does_not_exist() {
    let fixture = Fixture::new();
    let status = with_neutral_names(node_status(&["H100-80GB", "T4-16GB"]));
    fixture.publisher.supply(Supply::from_statuses(&[status]));
    let chosen = json!({"policy": "default", "by": "another", "waits": [], "passed": []});
    let main = json!({"name": "main", "sizeGb": 10, "count": 1, "resource": "nvidia.com/mig-1g.10gb"});
    let forged = json!({"version": 1, "isolation": "memory", "containers": [main], "chosen": chosen});
    let began = tokio::time::Instant::now();
    // These are more pods than there are places of any kind.
    for number in 0..20 {
        let mut annotations = json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/isolation": "memory"});
        if number % 2 == 1 {
            annotations["kerf.dev/request"] = json!(forged.to_string());
        }
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [{"name": "main"}]}});
        let request = review::read(question("CREATE", &pod).to_string().as_bytes()).unwrap();
        let admission = fixture.webhook.decide(&request).await;
        let Admission::Patched { document, .. } = admission else { panic!("{admission:?}") };
        assert_eq!(document.containers[0].resource.to_string(), "kerf.dev/gpu-10gb");
        assert!(!document.to_json().contains("another"), "{}", document.to_json());
    }
    assert_eq!(began.elapsed(), std::time::Duration::ZERO);
}
