use super::*;
use serde_json::json;

fn pod(status: &serde_json::Value) -> Pod {
    serde_json::from_value(json!({"status": status})).unwrap()
}

fn of_container(state: &serde_json::Value, restarts: i32, last: &serde_json::Value) -> PodState {
    let container = json!({
        "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": restarts, "state": state,
        "lastState": last,
    });
    state_of(&json!({"phase": "Pending", "containerStatuses": [container]}))
}

fn state_of(status: &serde_json::Value) -> PodState {
    state(&pod(status), "main")
}

#[test]
fn a_pod_that_may_still_run_has_not_failed() {
    let pending = |text: &str| PodState::Pending(text.to_owned());
    assert_eq!(state_of(&json!({})), pending("its node's kubelet has not started it yet"));
    let condition = json!({"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"});
    assert_eq!(
        state_of(&json!({"conditions": [condition]})),
        pending("not scheduled: 0/1 nodes are available")
    );
    let creating = json!({"waiting": {"reason": "ContainerCreating"}});
    assert_eq!(of_container(&creating, 0, &json!({})), pending("ContainerCreating"));
    assert_eq!(of_container(&json!({"running": {}}), 0, &json!({})), PodState::Runs);
}

#[test]
fn a_pod_that_can_never_run_or_has_ended_has_failed() {
    let ends = |text: &str| PodState::Ends(text.to_owned());
    let failed = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"});
    assert_eq!(state_of(&failed), ends("UnexpectedAdmissionError: no device"));
    let pull = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
    assert_eq!(of_container(&pull, 0, &json!({})), ends("ImagePullBackOff: no such image"));
    let ended = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
    assert_eq!(of_container(&ended, 0, &json!({})), ends("its container ended with exit code 1 (Error)"));
    // A container that runs again counts as ended, because the lines before its restart are from another process.
    assert_eq!(
        of_container(&json!({"running": {}}), 1, &json!({})),
        ends("its container ended and was started anew")
    );
    assert_eq!(
        of_container(&json!({"running": {}}), 1, &ended),
        ends("its container ended with exit code 1 (Error)")
    );
}

#[test]
fn the_newest_events_are_listed_oldest_first() {
    let event = |second: u32| -> Event {
        serde_json::from_value(json!({
            "metadata": {}, "involvedObject": {}, "reason": "Waits", "message": format!("{second}"),
            "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
        }))
        .unwrap()
    };
    let lines = newest([3, 1, 2, 7, 6, 5, 4].map(event).into());
    assert_eq!(lines, ["Waits: 3", "Waits: 4", "Waits: 5", "Waits: 6", "Waits: 7"]);
}
