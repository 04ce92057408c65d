use super::*;
use crate::api_stand_in::{self, Asked, Log};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tokio::net::UnixListener;

fn node(labels: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "n1", "labels": labels},
    })
}

fn slices(names: &[&str]) -> Value {
    let items: Vec<Value> = names
        .iter()
        .map(|name| json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": name}}))
        .collect();
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": items})
}

fn poller(
    folder: PathBuf,
    answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static,
) -> (ConflictPoller, Log) {
    let (client, log) = api_stand_in::client(answer);
    (ConflictPoller::new((client, NodeName::new("n1")), folder, Duration::from_mins(1), None), log)
}

fn who(others: &[Other]) -> Vec<Who> {
    others.iter().map(|other| other.who).collect()
}

#[tokio::test]
async fn each_manager_is_detected_by_its_evidence() {
    let folder = tempfile::tempdir().unwrap();
    let _plugin = UnixListener::bind(folder.path().join("nvidia-gpu.sock")).unwrap();
    let (mut poller, log) = poller(folder.path().to_owned(), |asked| match asked.path.as_str() {
        "/api/v1/nodes/n1" => (200, node(&json!({"nvidia.com/mig.config.state": "pending"}))),
        "/apis/resource.k8s.io/v1/resourceslices" => (200, slices(&["n1-gpu"])),
        _ => api_stand_in::refusal(404),
    });
    let found = poller.poll().await;
    assert_eq!(who(&found), [Who::DevicePlugin, Who::MigManager, Who::DraDriver]);
    for (other, evidence) in found.iter().zip(["nvidia-gpu.sock", "pending", "gpu.nvidia.com"]) {
        assert!(other.evidence.contains(evidence), "{other}");
    }
    let query = &log.all()[1].query;
    assert!(query.contains("spec.nodeName%3Dn1%2Cspec.driver%3Dgpu.nvidia.com"), "{query}");
    poller.poll().await;
    assert_eq!(log.all().len(), 2, "the API server is not asked at every poll");
}

#[tokio::test]
async fn a_node_without_other_managers_has_no_conflict() {
    let folder = tempfile::tempdir().unwrap();
    for code in [403, 404] {
        let (mut poller, _) = poller(folder.path().to_owned(), move |asked| match asked.path.as_str() {
            "/api/v1/nodes/n1" => (200, node(&json!({"nvidia.com/gpu.deploy.device-plugin": "true"}))),
            _ => api_stand_in::refusal(code),
        });
        assert_eq!(poller.poll().await, [], "{code}");
    }
}

/// An unreachable API server proves nothing.
#[tokio::test]
async fn a_detected_manager_stays_while_the_api_server_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let code = Arc::new(AtomicU16::new(200));
    let now = Arc::clone(&code);
    let (mut poller, _) = poller(folder.path().to_owned(), move |asked| match now.load(Ordering::Relaxed) {
        200 | 201 if asked.path.ends_with("n1") => (200, node(&json!({}))),
        200 => (200, slices(&["n1-gpu"])),
        201 => (200, slices(&[])),
        code => api_stand_in::refusal(code),
    });
    assert_eq!(who(&poller.poll().await), [Who::DraDriver]);
    for (answer, expected) in [(503, vec![Who::DraDriver]), (201, vec![])] {
        code.store(answer, Ordering::Relaxed);
        poller.ask_at = Instant::now();
        assert_eq!(who(&poller.poll().await), expected, "{answer}");
    }
}

#[tokio::test]
async fn a_plugin_stays_detected_while_its_sockets_are_briefly_missing() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nvidia-gpu.sock");
    let plugin = UnixListener::bind(&socket).unwrap();
    let (mut poller, _) = poller(folder.path().to_owned(), |_| api_stand_in::refusal(404));
    let before = poller.poll().await;
    // The kubelet restarts and empties the folder.
    drop(plugin);
    std::fs::remove_file(&socket).unwrap();
    assert_eq!(poller.poll().await, before);
    poller.live_at -= poller.timeout;
    assert_eq!(poller.poll().await, []);
}

#[tokio::test]
async fn earlier_evidence_for_a_plugin_expires_without_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let (client, _) = api_stand_in::client(|_| api_stand_in::refusal(404));
    let (of, before) = ((client, NodeName::new("n1")), Some("it was seen".to_owned()));
    let mut poller = ConflictPoller::new(of, folder.path().to_owned(), Duration::from_mins(1), before);
    assert_eq!(who(&poller.poll().await), [Who::DevicePlugin]);
    poller.live_at -= poller.timeout;
    assert_eq!(poller.poll().await, []);
}

#[tokio::test]
async fn the_first_result_is_always_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (poller, _) = poller(folder.path().to_owned(), |_| api_stand_in::refusal(404));
    let (sender, mut others) = watch::channel(Vec::new());
    let stop = CancellationToken::new();
    let watching = tokio::spawn(poller.watch(sender, stop.clone()));
    others.changed().await.unwrap();
    assert_eq!(*others.borrow(), []);
    stop.cancel();
    watching.await.unwrap();
}
