//! Tests what the watch reports of pods.

use super::*;
use crate::api_stand_in;
use crate::pod_view::REJECTED;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

fn pod(uid: &str, status: &Value) -> PodView {
    let limits = |count: &str| json!({"limits": {"nvidia.com/mig-1g.10gb": count}});
    serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "ns", "uid": uid},
        "spec": {
            "initContainers": [{"name": "load", "resources": limits("2")}],
            "containers": [{"name": "main", "resources": limits("1")}],
        },
        "status": status,
    }))
    .unwrap()
}

#[test]
fn a_change_of_a_pod_is_reported_once() {
    let mut roster = Roster::default();
    assert_eq!(roster.take_changed(), Some(NodePods::new()), "the first report is due even without a pod");
    roster.take(&pod("u", &json!({"phase": "Pending"})));
    let reported = roster.take_changed().unwrap();
    let known = &reported[&PodUid::new("u")];
    let (counts, inits) = (known.names.values().copied(), known.inits.iter().map(String::as_str));
    assert_eq!((known.admitted, counts.collect(), inits.collect()), (false, vec![2], vec!["load"]));
    assert_eq!(roster.take_changed(), None);
    roster.take(&pod("u", &json!({"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"})));
    assert!(roster.take_changed().unwrap()[&PodUid::new("u")].admitted);
    roster.take(&pod("u", &json!({"phase": "Failed", "startTime": "2026-01-01T00:00:00Z"})));
    assert_eq!(roster.take_changed(), Some(NodePods::new()));
}

#[test]
fn processes_of_a_pod_may_run_until_its_status_says_that_they_have_ended() {
    let containers = |init: &str, main: &str, phase: &str| {
        let of = |state: &str| json!([{"name": "main", "state": {state: {}}}]);
        json!({"phase": phase, "initContainerStatuses": of(init), "containerStatuses": of(main)})
    };
    for (status, may_run) in [
        (json!({"phase": "Pending"}), true),
        (containers("terminated", "waiting", "Pending"), true),
        (containers("terminated", "running", "Running"), true),
        (containers("running", "terminated", "Running"), true),
        (containers("terminated", "terminated", "Running"), false),
        (containers("waiting", "waiting", "Failed"), false),
        (json!({"phase": "Failed", "reason": REJECTED}), false),
        (containers("terminated", "running", "Failed"), true),
    ] {
        assert_eq!(pod("u", &status).may_run(), may_run, "{status}");
    }
}

/// The watch's events when the API server shows these pods first, and those after a gap.
async fn reported(before: Value, after: Value) -> Vec<Event> {
    let lists = AtomicUsize::new(0);
    let (client, _) = api_stand_in::client(move |asked| {
        let list = |pods: &Value| (200, json!({"metadata": {"resourceVersion": "7"}, "items": pods}));
        let gone = json!({"kind": "Status", "code": 410, "message": "too old", "reason": "Expired"});
        match (asked.query.contains("watch=true"), lists.load(Ordering::Relaxed)) {
            (false, 0) => {
                lists.store(1, Ordering::Relaxed);
                list(&before)
            }
            (false, _) => {
                lists.store(2, Ordering::Relaxed);
                list(&after)
            }
            (true, 1) => (200, json!({"type": "ERROR", "object": gone})),
            (true, _) => api_stand_in::refusal(503),
        }
    });
    let ((events, mut heard), stop) = (Events::channel(), CancellationToken::new());
    let watching = watch(client, NodeName::new("n1"), events, Arc::default(), stop.clone());
    let watching = tokio::spawn(watching);
    let mut reported = Vec::new();
    let is_pods = |event: &Event| matches!(event, Event::Pods(_));
    while reported.iter().filter(|event| is_pods(event)).count() < 2 {
        reported.push(heard.recv().await.unwrap());
    }
    stop.cancel();
    watching.await.unwrap();
    reported.retain(|event| !is_pods(event));
    reported
}

#[tokio::test]
async fn a_pod_that_is_gone_after_a_gap_of_the_watch_counts_as_cut_off() {
    let shown = |uid: &str, phase: &str| {
        let limits = json!({"limits": {"nvidia.com/mig-1g.10gb": 1}});
        let state = if phase == "Running" { "running" } else { "terminated" };
        json!({
            "metadata": {"name": uid, "namespace": "ns", "uid": uid},
            "spec": {"containers": [{"name": "main", "resources": limits}]},
            "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": {state: {}}}]},
        })
    };
    let before = ["a", "b", "c"].map(|uid| shown(uid, "Running"));
    let before = json!([before[0], before[1], before[2], shown("d", "Succeeded")]);
    let after = json!([shown("b", "Succeeded"), shown("c", "Running")]);
    let reported = reported(before, after).await;
    let [Event::PodCutOff(cut_off, _), Event::PodLeft(left, _)] = &reported[..] else {
        panic!("{reported:?}")
    };
    assert_eq!((cut_off.name.as_str(), left.name.as_str()), ("a", "b"));
}

#[test]
fn a_pod_that_was_rejected_during_a_gap_of_the_watch_is_reported_once() {
    let mut rejections = Rejections::default();
    let rejected = |uid| pod(uid, &json!({"phase": "Failed", "reason": REJECTED}));
    let mut list = |pods: &[PodView], then: &PodView| {
        for pod in pods {
            rejections.list(pod);
        }
        let reported = rejections.list_is_whole().into_iter().map(|(_, uid)| uid.to_string());
        (reported.collect::<Vec<_>>(), rejections.take(then))
    };
    let none = Vec::<String>::new();
    let (old, seen, missed) = (rejected("old"), rejected("seen"), rejected("missed"));
    let fine = pod("fine", &json!({"phase": "Failed", "reason": "Evicted"}));
    let first = [old.clone()];
    assert_eq!(list(&first, &seen), (none.clone(), true));
    let all = [old.clone(), seen, missed.clone(), fine];
    assert_eq!(list(&all, &missed), (vec!["missed".to_owned()], false));
    assert_eq!(list(&all, &old), (none, false));
}

#[test]
fn a_pod_without_names_of_kerf_is_not_reported() {
    let mut roster = Roster::default();
    roster.take_changed();
    let other = json!({"metadata": {"name": "b"}, "spec": {"containers": [{"name": "main"}]}, "status": {}});
    roster.take(&serde_json::from_value(other).unwrap());
    assert_eq!(roster.take_changed(), None);
}
