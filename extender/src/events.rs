//! Writes Kubernetes Events about pods and nodes. Events are for people: no part of kerf waits for them.

use crate::metrics::Metrics;
use k8s_openapi::api::events::v1::Event;
use kerf_core::keys;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::plugin_layout::LayoutEvent;
use kerf_runtime::event_note::{LONGEST_NOTE, shortened};
use kube::api::{Api, PostParams};
use serde_json::json;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Timeout of one write. An Event that could not be written is lost until its content changes.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The reasons of Events about pods. The list is closed: `docs/events.md` has a row for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventReason {
    /// The pod is pending because its namespace's quota is full.
    QuotaFull,
    /// The pod is pending, and evicting others would not help it.
    NobodyPreempted,
    /// The pod is pending for a kind of slice that has no free capacity while another kind has.
    AnotherKindHasRoom,
    /// The pod is bound with these slices.
    SlicesAssigned,
    /// The pod is bound with an MPS share, and its processes may be root, whose commands the MPS daemon obeys.
    MayCommandMps,
    /// The pod was evicted to make room for a bigger pod.
    EvictedForAnother,
}

impl EventReason {
    /// Every reason, for the test against the documentation.
    #[cfg(test)]
    const ALL: [Self; 6] = [
        Self::QuotaFull,
        Self::NobodyPreempted,
        Self::AnotherKindHasRoom,
        Self::SlicesAssigned,
        Self::MayCommandMps,
        Self::EvictedForAnother,
    ];

    /// The Event's reason, in the API's CamelCase.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QuotaFull => "QuotaFull",
            Self::NobodyPreempted => "NobodyPreempted",
            Self::AnotherKindHasRoom => "AnotherKindHasRoom",
            Self::SlicesAssigned => "SlicesAssigned",
            Self::MayCommandMps => "MayCommandMps",
            Self::EvictedForAnother => "MovedForAnother",
        }
    }

    /// The Event's action, in the API's CamelCase.
    fn action(self) -> &'static str {
        match self {
            Self::QuotaFull | Self::NobodyPreempted | Self::AnotherKindHasRoom => "Scheduling",
            Self::SlicesAssigned | Self::MayCommandMps => "Binding",
            Self::EvictedForAnother => "Evicting",
        }
    }

    /// `Warning` for what an admin should check.
    fn kind(self) -> &'static str {
        match self {
            Self::SlicesAssigned => "Normal",
            Self::QuotaFull
            | Self::NobodyPreempted
            | Self::AnotherKindHasRoom
            | Self::MayCommandMps
            | Self::EvictedForAnother => "Warning",
        }
    }
}

/// How many Events may be written in a burst, and how often one more after it. People can read no more than that.
const BURST_LIMIT: u32 = 100;
const EVENT_INTERVAL: Duration = Duration::from_millis(50);

/// Limits the rate of Events, because each costs the API server as much as half a Binding.
#[derive(Debug, Default)]
pub struct Limit {
    /// When all Events so far would have been written, had each waited for its turn.
    spent_until: Mutex<Option<Instant>>,
}

impl Limit {
    /// Whether an Event may be written now. If so, it counts as written.
    #[must_use]
    pub fn admits(&self, now: Instant) -> bool {
        // No code panics while it holds this lock.
        let mut spent = self.spent_until.lock().unwrap_or_else(PoisonError::into_inner);
        let until = spent.map_or(now, |until| until.max(now));
        let admits = until.duration_since(now) < EVENT_INTERVAL * BURST_LIMIT;
        if admits {
            *spent = Some(until + EVENT_INTERVAL);
        }
        admits
    }
}

/// Writes Events about pods, within the limit.
pub struct Recorder {
    client: kube::Client,
    metrics: Metrics,
    limit: Limit,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    #[must_use]
    pub fn new(client: kube::Client, metrics: Metrics) -> Self {
        Self { client, metrics, limit: Limit::default() }
    }

    /// Writes an Event about a pod, unless the limit is reached. Each message is an Event of its own, because a
    /// repeated Event would keep its first message.
    pub async fn publish(&self, pod: &PodKey, uid: &PodUid, reason: EventReason, note: String) {
        if !self.limit.admits(Instant::now()) {
            self.metrics.dropped_event();
            return tracing::info!(%pod, %uid, reason = reason.name(), note, "left out an Event: too many at once");
        }
        let event = match event(pod, uid, reason, note) {
            Ok(event) => event,
            Err(error) => {
                return tracing::error!(%pod, reason = reason.name(), %error, "failed to make an Event");
            }
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &pod.namespace);
        match timeout(TIMEOUT, api.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(%pod, reason = reason.name(), %error, "failed to write an Event");
            }
            Err(_) => tracing::warn!(%pod, reason = reason.name(), "failed to write an Event in time"),
        }
    }
}

/// Writes an Event about a Node's layout. It is in the namespace `default`, under the Node's name, as the kubelet's
/// Events are.
pub async fn publish_for_node(client: &kube::Client, node: &NodeName, layout: LayoutEvent) {
    let (reason, event) = (layout.reason.clone(), node_event(node, layout));
    let event = match event {
        Ok(event) => event,
        Err(error) => return tracing::error!(%node, reason, %error, "failed to make an Event"),
    };
    let api: Api<Event> = Api::namespaced(client.clone(), "default");
    match timeout(TIMEOUT, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%node, reason, %error, "failed to write an Event"),
        Err(_) => tracing::warn!(%node, reason, "failed to write an Event in time"),
    }
}

fn node_event(node: &NodeName, layout: LayoutEvent) -> serde_json::Result<Event> {
    let LayoutEvent { reason, message, is_warning } = layout;
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

fn event(pod: &PodKey, uid: &PodUid, reason: EventReason, mut note: String) -> serde_json::Result<Event> {
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    serde_json::from_value(json!({
        "metadata": {"generateName": format!("{}-", pod.name), "namespace": pod.namespace},
        "eventTime": jiff::Timestamp::now(),
        "type": reason.kind(),
        "reason": reason.name(),
        "action": reason.action(),
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
    use crate::api_stand_in::ApiStandIn;
    use http::Method;
    use kerf_core::packing::Refusal;
    use std::collections::BTreeSet;

    #[test]
    fn an_event_names_the_pod_and_cuts_a_long_note() {
        let written =
            event(&PodKey::new("ns", "a"), &"u".into(), EventReason::QuotaFull, "é".repeat(LONGEST_NOTE))
                .unwrap();
        assert_eq!(written.regarding.and_then(|pod| pod.uid).as_deref(), Some("u"));
        assert_eq!(written.note.map(|note| note.len()), Some(LONGEST_NOTE));
        assert_eq!(written.metadata.generate_name.as_deref(), Some("a-"));
    }

    #[test]
    fn events_beyond_a_burst_are_written_one_by_one() {
        let (limit, begun) = (Limit::default(), Instant::now());
        let written = |after: Duration| (0..1000).filter(|_| limit.admits(begun + after)).count();
        assert_eq!(written(Duration::ZERO), 100);
        assert_eq!(written(Duration::from_secs(1)), 20);
        assert_eq!(written(Duration::from_hours(1)), 100);
    }

    #[tokio::test]
    async fn no_more_events_are_written_than_the_limit_admits() {
        let api = ApiStandIn::new();
        let (metrics, _) = Metrics::new();
        let recorder = Recorder::new(api.client(), metrics);
        let begun = Instant::now();
        for number in 0..300 {
            let (pod, uid) = (PodKey::new("default", format!("p{number}")), PodUid::new(number.to_string()));
            recorder.publish(&pod, &uid, EventReason::SlicesAssigned, "on node n".to_owned()).await;
        }
        let most = 101 + begun.elapsed().as_millis() / EVENT_INTERVAL.as_millis();
        let written = u128::try_from(api.requests(&Method::POST)).unwrap();
        assert!((100..=most).contains(&written), "{written} of at most {most}");
    }

    #[test]
    fn the_documentation_has_a_row_for_every_reason_and_for_no_other() {
        assert_eq!(
            documented("## About pods"),
            EventReason::ALL.map(|reason| reason.name().to_owned()).into()
        );
    }

    /// The extender's reasons in a section of `docs/events.md`.
    fn documented(section: &str) -> BTreeSet<String> {
        let (_, text) = include_str!("../../docs/events.md").split_once(section).unwrap();
        let text = text.split_once("\n## ").map_or(text, |(text, _)| text);
        let rows = text.lines().filter_map(|line| line.split_once("| extender |"));
        rows.flat_map(|(reasons, _)| reasons.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
    }

    #[test]
    fn the_events_of_layouts_have_the_reasons_of_the_condition() {
        let conditions = include_str!("../../docs/reference/plugin-layouts.md");
        let rows = ["| True | `", "| Unknown | `", "| False | `"];
        let rows = conditions.lines().filter_map(|line| rows.iter().find_map(|row| line.strip_prefix(row)));
        let reasons = rows.filter_map(|row| Some(format!("Layout{}", row.split_once('`')?.0)));
        let reasons: BTreeSet<String> = reasons.chain(["LayoutRemoved".to_owned()]).collect();
        assert_eq!(documented("## About nodes"), reasons);
    }

    /// Keeps the list complete: a new refusal does not compile until it has a number, and fails until it is listed here
    /// and documented.
    #[test]
    fn the_documentation_has_every_refusal() {
        let all = [
            Refusal::NotAdmitted,
            Refusal::UnreadableRequest,
            Refusal::NoAgent,
            Refusal::UnreadableStatus,
            Refusal::UnreadableSpec,
            Refusal::AgentNotReady,
            Refusal::NotConnected,
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
            Refusal::NotConnected => 6,
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
