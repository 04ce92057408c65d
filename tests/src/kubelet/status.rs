//! Composes the pod status that the kubelet writes, as JSON for a strategic merge patch. It is pure except
//! for the current time.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::downward::Whereabouts;

/// The state of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ContainerState {
    /// When its current run started; `None` before the first start and between runs.
    pub(super) started: Option<Timestamp>,
    /// Its first process while it runs as a process.
    pub(super) process: Option<u32>,
    /// The exit code of its last run.
    pub(super) exit: Option<i32>,
    /// How many runs followed the first one.
    pub(super) restarts: u32,
    /// Whether its startup probe has succeeded; true without one.
    pub(super) has_come_up: bool,
    /// Whether its readiness probe succeeds; true without one.
    pub(super) answers: bool,
    /// Reason and message of why it does not start yet.
    pub(super) waiting: Option<(&'static str, String)>,
}

impl ContainerState {
    fn is_ready(&self) -> bool {
        self.started.is_some() && self.has_come_up && self.answers
    }
}

pub(super) type ContainerStates = BTreeMap<String, ContainerState>;

/// The status of an admitted pod whose init containers have not all ended.
pub(super) fn initializing(pod: &Pod, states: &ContainerStates, since: Timestamp) -> Value {
    let mut shown = described(pod, states, since);
    shown["phase"] = json!("Pending");
    shown["conditions"] = conditions(false, false, None);
    shown
}

/// Adds the addresses of a pod and its node.
pub(super) fn located(mut shown: Value, at: Option<&Whereabouts>) -> Value {
    if let Some(at) = at {
        shown["podIP"] = json!(at.pod);
        shown["podIPs"] = json!([{"ip": at.pod}]);
        shown["hostIP"] = json!(at.host);
        shown["hostIPs"] = json!([{"ip": at.host}]);
    }
    shown
}

/// The status of a pod whose containers have started.
pub(super) fn running(pod: &Pod, states: &ContainerStates, since: Timestamp) -> Value {
    let ready = app_containers(pod).all(|container| is_ready(states, &container.name));
    let mut shown = described(pod, states, since);
    shown["phase"] = json!("Running");
    shown["conditions"] = conditions(true, ready, None);
    shown
}

/// The status of a pod whose containers have all ended for good.
pub(super) fn completed(pod: &Pod, states: &ContainerStates, since: Timestamp, failed: bool) -> Value {
    let mut shown = described(pod, states, since);
    shown["phase"] = json!(if failed { "Failed" } else { "Succeeded" });
    shown["conditions"] = conditions(true, false, Some(if failed { "PodFailed" } else { "PodCompleted" }));
    shown
}

/// The status of a rejected pod (kubernetes v1.36, `rejectPod` in `pkg/kubelet/kubelet.go`).
pub(super) fn rejected(reason: &str, message: &str) -> Value {
    json!({
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": rfc3339(Timestamp::now()),
    })
}

/// The Event of a rejection.
pub(super) fn warning(node: &str, pod: &Pod, reason: &str, message: &str) -> Event {
    let now = Timestamp::now();
    let metadata = &pod.metadata;
    Event {
        metadata: ObjectMeta {
            generate_name: metadata.name.as_ref().map(|name| format!("{name}.")),
            namespace: metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: metadata.name.clone(),
            namespace: metadata.namespace.clone(),
            uid: metadata.uid.clone(),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node.to_owned()) }),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        ..Event::default()
    }
}

/// A time as the API writes it, in whole seconds.
pub(super) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn described(pod: &Pod, states: &ContainerStates, since: Timestamp) -> Value {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let list = |containers: &mut dyn Iterator<Item = &Container>| -> Vec<Value> {
        let first =
            if init_containers(pod).next().is_some() { "PodInitializing" } else { "ContainerCreating" };
        containers
            .map(|container| container_status(uid, container, states.get(&container.name), first))
            .collect()
    };
    json!({
        "startTime": rfc3339(since),
        "initContainerStatuses": list(&mut init_containers(pod)),
        "containerStatuses": list(&mut app_containers(pod)),
    })
}

/// The status of a container. `first` is the reason while it has not started and has no other.
fn container_status(uid: &str, container: &Container, state: Option<&ContainerState>, first: &str) -> Value {
    let state = state.cloned().unwrap_or_default();
    let id = format!("stand-in://{uid}/{}", container.name);
    let ended = state.exit.map(|code| {
        let reason = if code == 0 { "Completed" } else { "Error" };
        json!({"terminated": {"exitCode": code, "reason": reason, "containerID": id}})
    });
    let shown = match (state.started, &ended, &state.waiting) {
        (Some(started), ..) => json!({"running": {"startedAt": rfc3339(started)}}),
        (None, _, Some((reason, message))) => json!({"waiting": {"reason": reason, "message": message}}),
        (None, Some(ended), None) => ended.clone(),
        (None, None, None) => json!({"waiting": {"reason": first}}),
    };
    let last = if shown.get("terminated").is_some() { None } else { ended };
    json!({
        "name": container.name,
        "image": container.image.clone().unwrap_or_default(),
        "imageID": "",
        "containerID": id,
        "ready": state.is_ready(),
        "started": state.started.is_some() && state.has_come_up,
        "restartCount": state.restarts,
        "state": shown,
        "lastState": last,
    })
}

fn conditions(initialized: bool, ready: bool, ended: Option<&str>) -> Value {
    let now = rfc3339(Timestamp::now());
    let condition = |kind: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        let reason = ended.filter(|_| !holds);
        json!({"type": kind, "status": status, "reason": reason, "lastTransitionTime": now})
    };
    json!([
        condition("PodReadyToStartContainers", ended.is_none()),
        condition("Initialized", initialized),
        condition("ContainersReady", ready),
        condition("Ready", ready),
    ])
}

fn is_ready(states: &ContainerStates, name: &str) -> bool {
    states.get(name).is_some_and(ContainerState::is_ready)
}

fn app_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| &spec.containers)
}

fn init_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().filter_map(|spec| spec.init_containers.as_ref()).flatten()
}
