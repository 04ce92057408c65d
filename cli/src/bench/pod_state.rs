//! Reads a pod's status: does its container run, and can it still start? No I/O.

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};

/// Reasons for waiting that do not pass by themselves. A run ends with them, because a person has to act.
const HOPELESS: [&str; 8] = [
    "CrashLoopBackOff",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodState {
    Pending(String),
    Runs,
    Ends(String),
}

pub fn state(pod: &Pod, container: &str) -> PodState {
    let status = pod.status.clone().unwrap_or_default();
    let text = |text: Option<String>, other: &str| {
        text.filter(|text| !text.is_empty()).unwrap_or_else(|| other.to_owned())
    };
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) {
        let reason = text(status.reason, "it has ended");
        return PodState::Ends(text(status.message.map(|message| format!("{reason}: {message}")), &reason));
    }
    let containers = status.container_statuses.unwrap_or_default();
    if let Some(status) = containers.iter().find(|status| status.name == container) {
        return container_state(status);
    }
    let conditions = status.conditions.unwrap_or_default();
    let scheduled = conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status != "True");
    PodState::Pending(match scheduled {
        Some(condition) => format!("not scheduled: {}", text(condition.message, "no reason reported yet")),
        None => "its node's kubelet has not started it yet".to_owned(),
    })
}

fn container_state(status: &ContainerStatus) -> PodState {
    let state = status.state.clone().unwrap_or_default();
    let last = status.last_state.clone().and_then(|state| state.terminated);
    if let Some(ended) = state.terminated.or(last) {
        let reason = ended.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        return PodState::Ends(format!("its container ended with exit code {}{reason}", ended.exit_code));
    }
    if status.restart_count > 0 {
        return PodState::Ends("its container ended and was started anew".to_owned());
    }
    if let Some(waiting) = state.waiting {
        let reason = waiting.reason.unwrap_or_default();
        let message = waiting.message.map(|message| format!(": {message}")).unwrap_or_default();
        let text = format!("{reason}{message}");
        return if HOPELESS.contains(&reason.as_str()) {
            PodState::Ends(text)
        } else {
            PodState::Pending(text)
        };
    }
    if state.running.is_some() { PodState::Runs } else { PodState::Pending("its container waits".to_owned()) }
}

pub fn newest(mut events: Vec<Event>) -> Vec<String> {
    let at = |event: &Event| {
        let times = [event.last_timestamp.as_ref().map(|at| at.0), event.event_time.as_ref().map(|at| at.0)];
        times.into_iter().flatten().next()
    };
    events.sort_by_key(at);
    let line = |event: &Event| {
        let [reason, message] =
            [&event.reason, &event.message].map(|text| text.as_deref().unwrap_or_default());
        format!("{reason}: {message}")
    };
    let mut lines: Vec<String> = events.iter().map(line).collect();
    lines.dedup();
    lines.split_off(lines.len().saturating_sub(5))
}

#[cfg(test)]
#[path = "pod_state_tests.rs"]
mod tests;
