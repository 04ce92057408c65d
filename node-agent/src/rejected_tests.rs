use super::*;
use crate::api_stand_in::{self, Asked};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let limits = json!({"limits": {"nvidia.com/mig-1g.10gb": "1"}});
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "ml", "uid": format!("uid-{name}"),
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}],
        },
        "spec": {"containers": [{"name": "main", "resources": limits}]},
        "status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"},
    });
    change(&mut pod);
    pod
}

fn is_rejected(change: impl FnOnce(&mut Value)) -> bool {
    Rejected::from_pod(&serde_json::from_value(pod("a", change)).unwrap()).is_some()
}

#[test]
fn only_rejected_pods_with_a_controller_and_a_gpu_request_are_removed() {
    assert!(is_rejected(|_| {}));
    let limits = |name: &'static str| {
        move |pod: &mut Value| pod["spec"]["containers"][0]["resources"]["limits"] = json!({name: "1"})
    };
    assert!(is_rejected(limits("nvidia.com/gpu")));
    assert!(is_rejected(limits("nvidia.com/gpu-4gb.shared")));
    assert!(is_rejected(limits("nvidia.com/pgpu")));
    assert!(is_rejected(|pod| {
        pod["spec"]["initContainers"] = pod["spec"]["containers"].take();
        pod["spec"]["containers"] = json!([{"name": "main"}]);
    }));
    assert!(!is_rejected(limits("example.com/fpga")));
    assert!(!is_rejected(|pod| pod["spec"]["containers"] = json!([{"name": "main"}])));
    assert!(!is_rejected(|pod| pod["status"]["phase"] = json!("Running")));
    assert!(!is_rejected(|pod| pod["status"]["reason"] = json!("Evicted")));
    assert!(!is_rejected(|pod| pod["metadata"]["ownerReferences"] = json!([])));
    assert!(!is_rejected(|pod| pod["metadata"]["ownerReferences"][0]["controller"] = json!(false)));
    assert!(!is_rejected(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")));
}

fn list(pods: &[Value]) -> (u16, Value) {
    (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}))
}

fn recorder(client: Client) -> (Recorder, crate::recorder::Writer) {
    Recorder::new(client, NodeName::new("n1"))
}

/// The requests after everything that is due was done.
async fn asked(answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) -> Vec<Asked> {
    let (client, log) = api_stand_in::client(answer);
    let (recorder, writer) = recorder(client.clone());
    remove_once(&client, &NodeName::new("n1"), &recorder).await.unwrap();
    drop(recorder);
    writer.run(CancellationToken::new()).await;
    log.all()
}

#[tokio::test]
async fn a_rejected_pod_is_deleted_by_its_uid_and_reported() {
    let all = asked(|asked| match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/api/v1/pods") => {
            list(&[pod("a", |_| {}), pod("b", |pod| pod["status"]["reason"] = json!("Evicted"))])
        }
        ("DELETE", "/api/v1/namespaces/ml/pods/a") => (200, pod("a", |_| {})),
        ("POST", _) => (201, asked.body.clone()),
        _ => api_stand_in::refusal(404),
    })
    .await;
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(
        all[0].query.contains("fieldSelector=spec.nodeName%3Dn1%2Cstatus.phase%3DFailed"),
        "{}",
        all[0].query
    );
    assert_eq!(all[1].body["preconditions"]["uid"], "uid-a");
    assert_eq!(all[2].body["reason"], "RejectedPodRemoved");
    assert!(all[2].body["note"].as_str().unwrap().contains("no healthy devices present"));
}

/// A pod that is gone causes no Event, and one that cannot be deleted does not block the next.
#[tokio::test]
async fn a_failed_deletion_does_not_block_the_next_pod() {
    let all = asked(|asked| match (asked.method.as_str(), asked.path.rsplit('/').next()) {
        ("GET", _) => list(&[pod("gone", |_| {}), pod("kept", |_| {}), pod("a", |_| {})]),
        ("DELETE", Some("gone")) => api_stand_in::refusal(409),
        ("DELETE", Some("kept")) => api_stand_in::refusal(500),
        ("DELETE", _) => (200, pod("a", |_| {})),
        _ => (201, asked.body.clone()),
    })
    .await;
    let events: Vec<&Asked> = all.iter().filter(|asked| asked.method == "POST").collect();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].body["regarding"]["name"], "a");
}

#[tokio::test]
async fn rejected_pods_are_listed_only_if_the_policy_enables_it() {
    let may = Arc::new(AtomicBool::new(false));
    let allowed = Arc::clone(&may);
    let (looked, mut seen) = mpsc::unbounded_channel();
    let (client, _) = api_stand_in::client(move |_| {
        looked.send(allowed.load(Ordering::SeqCst)).unwrap();
        list(&[])
    });
    let (wanted, receiver) = watch::channel(false);
    let stop = CancellationToken::new();
    let (recorder, _writer) = recorder(client.clone());
    let removing = tokio::spawn(remove(client, NodeName::new("n1"), receiver, recorder, stop.clone()));
    tokio::task::yield_now().await;
    may.store(true, Ordering::SeqCst);
    wanted.send_replace(true);
    assert_eq!(seen.recv().await, Some(true), "it listed pods before the policy enabled it");
    stop.cancel();
    removing.await.unwrap();
}

#[tokio::test]
async fn an_eviction_deletes_that_pod_and_no_namesake() {
    let (client, log) = api_stand_in::client(|asked| match asked.path.rsplit('/').next() {
        Some("guarded") => api_stand_in::refusal(403),
        _ => (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})),
    });
    let (sender, requests) = mpsc::channel(4);
    for name in ["guarded", "greedy"] {
        let (key, uid) = (PodKey::new("ml", name), PodUid::new(format!("uid-{name}")));
        sender.send(Eviction { key, uid, why: "uses 5Gi of 4Gi".to_owned() }).await.unwrap();
    }
    drop(sender);
    let stop = CancellationToken::new();
    let evicting = tokio::spawn(evict(client, requests, stop.clone()));
    while log.all().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    evicting.await.unwrap();
    let all = log.all();
    let greedy = all.iter().find(|asked| asked.path == "/api/v1/namespaces/ml/pods/greedy").unwrap();
    assert_eq!(greedy.body["preconditions"]["uid"], "uid-greedy");
}
