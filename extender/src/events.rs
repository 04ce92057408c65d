//! Kubernetes Events of the extender's, about pods and nodes. An Event is for people; nothing waits for it.

use k8s_openapi::api::events::v1::Event;
use kerf_core::keys;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::plugin_layout::Told;
use kerf_runtime::event_note::{LONGEST_NOTE, shortened};
use kube::api::{Api, PostParams};
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

/// How long one write may take. What could not be told is told when it changes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a pod is told something. A closed list: `docs/events.md` has a row for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// It waits because its namespace's quota is full.
    QuotaFull,
    /// It waits, and evicting others would not help it.
    NobodyPreempted,
    /// It waits for a kind of slice that stays full while another has room.
    AnotherKindHasRoom,
    /// It was deleted so that its controller makes another, for which is chosen anew.
    ChosenAnew,
    /// It is bound, with these slices.
    SlicesAssigned,
    /// It is bound with an MPS share, and its processes may be root: the daemon obeys them.
    MayCommandMps,
    /// It was evicted to make room for a bigger one.
    MovedForAnother,
}

impl Topic {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::QuotaFull,
        Self::NobodyPreempted,
        Self::AnotherKindHasRoom,
        Self::ChosenAnew,
        Self::SlicesAssigned,
        Self::MayCommandMps,
        Self::MovedForAnother,
    ];

    /// The Event's reason, in the API's CamelCase.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::QuotaFull => "QuotaFull",
            Self::NobodyPreempted => "NobodyPreempted",
            Self::AnotherKindHasRoom => "AnotherKindHasRoom",
            Self::ChosenAnew => "ChosenAnew",
            Self::SlicesAssigned => "SlicesAssigned",
            Self::MayCommandMps => "MayCommandMps",
            Self::MovedForAnother => "MovedForAnother",
        }
    }

    /// What was done, in the API's CamelCase.
    fn action(self) -> &'static str {
        match self {
            Self::QuotaFull | Self::NobodyPreempted | Self::AnotherKindHasRoom => "Scheduling",
            Self::ChosenAnew => "Deleting",
            Self::SlicesAssigned | Self::MayCommandMps => "Binding",
            Self::MovedForAnother => "Evicting",
        }
    }

    /// `Warning` for what somebody should look at.
    fn kind(self) -> &'static str {
        match self {
            Self::SlicesAssigned => "Normal",
            Self::QuotaFull
            | Self::NobodyPreempted
            | Self::AnotherKindHasRoom
            | Self::ChosenAnew
            | Self::MayCommandMps
            | Self::MovedForAnother => "Warning",
        }
    }
}

/// Tells a pod something. Each note is an Event of its own: an Event that is repeated keeps its first note.
pub async fn tell(client: &kube::Client, pod: &PodKey, uid: &PodUid, topic: Topic, note: String) {
    let event = match event(pod, uid, topic, note) {
        Ok(event) => event,
        Err(error) => {
            return tracing::error!(%pod, reason = topic.reason(), %error, "failed to make an Event");
        }
    };
    let api: Api<Event> = Api::namespaced(client.clone(), &pod.namespace);
    match timeout(PATIENCE, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%pod, reason = topic.reason(), %error, "failed to write an Event"),
        Err(_) => tracing::warn!(%pod, reason = topic.reason(), "failed to write an Event in time"),
    }
}

/// Tells a Node's users how its layout is. Its Events are in the namespace `default`, under its name, as the kubelet's are.
pub async fn tell_node(client: &kube::Client, node: &NodeName, told: Told) {
    let (reason, event) = (told.reason.clone(), node_event(node, told));
    let event = match event {
        Ok(event) => event,
        Err(error) => return tracing::error!(%node, reason, %error, "failed to make an Event"),
    };
    let api: Api<Event> = Api::namespaced(client.clone(), "default");
    match timeout(PATIENCE, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%node, reason, %error, "failed to write an Event"),
        Err(_) => tracing::warn!(%node, reason, "failed to write an Event in time"),
    }
}

fn node_event(node: &NodeName, told: Told) -> serde_json::Result<Event> {
    let Told { reason, message, is_warning } = told;
    serde_json::from_value(json!({
        "metadata": {"generateName": format!("{node}-"), "namespace": "default"},
        "eventTime": jiff::Timestamp::now(),
        "type": if is_warning { "Warning" } else { "Normal" },
        "reason": reason,
        "action": "ConfiguringDevicePlugin",
        "note": shortened(message),
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "reportingController": format!("{}/extender", keys::GROUP),
        "reportingInstance": "kerf-extender",
    }))
}

fn event(pod: &PodKey, uid: &PodUid, topic: Topic, mut note: String) -> serde_json::Result<Event> {
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    serde_json::from_value(json!({
        "metadata": {"generateName": format!("{}-", pod.name), "namespace": pod.namespace},
        "eventTime": jiff::Timestamp::now(),
        "type": topic.kind(),
        "reason": topic.reason(),
        "action": topic.action(),
        "note": note,
        "regarding": {
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": uid,
        },
        "reportingController": format!("{}/extender", keys::GROUP),
        "reportingInstance": "kerf-extender",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::packing::Refusal;
    use std::collections::BTreeSet;

    #[test]
    fn an_event_names_the_pod_and_says_no_more_than_fits() {
        let told =
            event(&PodKey::new("ns", "a"), &"u".into(), Topic::QuotaFull, "é".repeat(LONGEST_NOTE)).unwrap();
        assert_eq!(told.regarding.and_then(|pod| pod.uid).as_deref(), Some("u"));
        assert_eq!(told.note.map(|note| note.len()), Some(LONGEST_NOTE));
        assert_eq!(told.metadata.generate_name.as_deref(), Some("a-"));
    }

    #[test]
    fn the_documentation_has_a_row_for_every_reason_and_for_no_other() {
        assert_eq!(documented("## About pods"), Topic::ALL.map(|topic| topic.reason().to_owned()).into());
    }

    /// The reasons of the extender's in a section of docs/events.md.
    fn documented(section: &str) -> BTreeSet<String> {
        let (_, text) = include_str!("../../docs/events.md").split_once(section).unwrap();
        let text = text.split_once("\n## ").map_or(text, |(text, _)| text);
        let rows = text.lines().filter_map(|line| line.split_once("| extender |"));
        rows.flat_map(|(reasons, _)| reasons.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
    }

    #[test]
    fn a_nodes_layout_is_told_by_the_reasons_of_its_condition() {
        let conditions = include_str!("../../docs/reference/plugin-layouts.md");
        let rows = ["| True | `", "| Unknown | `", "| False | `"];
        let rows = conditions.lines().filter_map(|line| rows.iter().find_map(|row| line.strip_prefix(row)));
        let reasons = rows.filter_map(|row| Some(format!("Layout{}", row.split_once('`')?.0)));
        let told: BTreeSet<String> = reasons.chain(["LayoutRemoved".to_owned()]).collect();
        assert_eq!(documented("## About nodes"), told);
    }

    /// Another refusal does not compile until it has a number, and fails until it is listed here and documented.
    #[test]
    fn the_documentation_has_every_reason_that_a_scheduler_tells() {
        let all = [
            Refusal::NotAdmitted,
            Refusal::UnreadableRequest,
            Refusal::NoAgent,
            Refusal::UnreadableStatus,
            Refusal::UnreadableSpec,
            Refusal::AgentNotReady,
            Refusal::AgentSilent,
            Refusal::ReservedElsewhere,
            Refusal::QuotaFull,
            Refusal::OverQuota,
            Refusal::NeverFits,
            Refusal::NotSelected,
            Refusal::CountNeverFits,
            Refusal::TooFewGpus,
            Refusal::OneReplica,
            Refusal::LayoutChanging,
            Refusal::LeaderChanged,
            Refusal::SlicesLeft,
            Refusal::NoRoom,
            Refusal::NameNotRegistered,
            Refusal::NoUserNamespaces,
            Refusal::Outranked,
        ];
        let number = |refusal: Refusal| match refusal {
            Refusal::NotAdmitted => 0,
            Refusal::UnreadableRequest => 1,
            Refusal::NoAgent => 2,
            Refusal::UnreadableStatus => 3,
            Refusal::UnreadableSpec => 4,
            Refusal::AgentNotReady => 5,
            Refusal::AgentSilent => 6,
            Refusal::ReservedElsewhere => 7,
            Refusal::QuotaFull => 8,
            Refusal::OverQuota => 9,
            Refusal::NeverFits => 10,
            Refusal::NotSelected => 11,
            Refusal::CountNeverFits => 12,
            Refusal::TooFewGpus => 13,
            Refusal::OneReplica => 14,
            Refusal::LayoutChanging => 15,
            Refusal::LeaderChanged => 16,
            Refusal::SlicesLeft => 17,
            Refusal::NoRoom => 18,
            Refusal::NameNotRegistered => 19,
            Refusal::NoUserNamespaces => 20,
            Refusal::Outranked => 21,
        };
        assert_eq!(all.map(number).to_vec(), (0..22).collect::<Vec<_>>());
        let text = include_str!("../../docs/events.md");
        for refusal in all {
            assert!(text.contains(&format!("| `{refusal}` |")), "{refusal}");
        }
    }
}
