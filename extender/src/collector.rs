//! Collects the metrics of the leader's term at each scrape. A follower reports only that it does not lead.
//!
//! Managed nodes that serve no pods have a series each, and other nodes have none, so that series do not grow with the
//! cluster.

use crate::cluster_index::{ClusterIndex, Pending, QuotaUse, pending_slices};
use crate::metric_labels::{PendingReason, ReservationState, Unserved};
use crate::term::{CurrentTerm, Term};
use hashbrown::HashMap;
use jiff::Timestamp;
use kerf_core::kind::KindLabel;
use kerf_core::names::{NodeName, PodUid};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: ReservationState,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PendingLabels {
    kind: &'static str,
    reason: PendingReason,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabels {
    node: String,
    reason: Unserved,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QuotaLabels {
    policy: String,
    namespace: String,
    resource: &'static str,
}

#[derive(Debug)]
pub struct TermCollector {
    current_term: Arc<CurrentTerm>,
    /// Since when each pending pod has had room, as far as scrapes have shown it.
    room_since: Mutex<HashMap<PodUid, Instant>>,
}

/// What is read from the index under its lock, so that encoding happens without it.
struct Seen {
    reservations: [(ReservationState, usize); 3],
    pending: Vec<Pending>,
    conditions: BTreeMap<(&'static str, &'static str), usize>,
    managed: usize,
    unserved: Vec<(NodeName, Unserved)>,
    quotas: Vec<QuotaUse>,
}

impl Seen {
    fn read(index: &mut ClusterIndex) -> Self {
        let pending = index.scheduling().pending();
        let statistics = index.statistics();
        Self {
            reservations: statistics.reservation_counts(),
            pending,
            conditions: statistics.condition_counts(),
            managed: statistics.managed_nodes(),
            unserved: statistics.unserved().into_iter().map(|(name, why)| (name.clone(), why)).collect(),
            quotas: statistics.quota_uses(),
        }
    }
}

/// Pending pods of one kind and reason.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    count: usize,
    oldest: Duration,
}

impl TermCollector {
    #[must_use]
    pub fn new(current_term: Arc<CurrentTerm>) -> Self {
        Self { current_term, room_since: Mutex::default() }
    }

    /// For each kind, the longest time for which a pending pod has had room.
    fn unused_room(&self, pending: &[Pending], now: Instant) -> BTreeMap<&'static str, Duration> {
        // A poisoned lock does no harm here, because the map is rebuilt.
        let mut since = self.room_since.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *since);
        let mut longest: BTreeMap<_, _> = labels().map(|kind| (kind, Duration::ZERO)).collect();
        for pod in pending.iter().filter(|pod| pod.reason == PendingReason::Room) {
            let began = before.get(&pod.uid).copied().unwrap_or(now);
            since.insert(pod.uid.clone(), began);
            let longest = longest.entry(pod.counted.kind.as_str()).or_default();
            *longest = (*longest).max(now.saturating_duration_since(began));
        }
        longest
    }
}

impl Collector for TermCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let term = self.current_term.term();
        let help = "Whether this replica leads and has listed everything";
        gauge(&mut encoder, "kerf_extender_leader", help, u32::from(term.is_some()))?;
        let Some(term) = term else { return Ok(()) };
        self.encode_term(&term, &mut encoder)
    }
}

impl TermCollector {
    fn encode_term(&self, term: &Arc<Term>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let seen = term.with(Seen::read);
        let room = self.unused_room(&seen.pending, Instant::now());
        let help = "Pods with reserved slices, by the state of the reservation";
        let reservations = seen.reservations.map(|(state, count)| (StateLabels { state }, count));
        gauges(encoder, "kerf_extender_reservations", help, reservations)?;
        let help = "Slices of admitted pods that have no reservation yet and could get one, by resource name";
        let slices = pending_slices(&seen.pending);
        let slices = slices.iter().map(|(name, count)| ([("resource", name.to_string())], *count));
        gauges(encoder, "kerf_extender_pending_slices", help, slices)?;
        encode_pending(&seen.pending, Timestamp::now(), encoder)?;
        let help = "The longest time for which a node has had room for a pending pod without a break";
        let room = room.iter().map(|(kind, longest)| ([("kind", *kind)], longest.as_secs_f64()));
        gauges(encoder, "kerf_extender_unused_room_seconds", help, room)?;
        encode_nodes(&seen, encoder)?;
        encode_quotas(&seen.quotas, encoder)
    }
}

/// Every value of the label `kind`.
fn labels() -> impl Iterator<Item = &'static str> {
    KindLabel::all().map(KindLabel::as_str)
}

/// Encodes every kind and reason, with zero for those without pods.
fn encode_pending(pending: &[Pending], now: Timestamp, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let keys = labels().flat_map(|kind| PendingReason::ALL.iter().map(move |reason| (kind, *reason)));
    let mut groups: BTreeMap<_, _> = keys.map(|key| (key, Group::default())).collect();
    for pod in pending {
        let group = groups.entry((pod.counted.kind.as_str(), pod.reason)).or_default();
        group.count += 1;
        group.oldest = group.oldest.max(pod.counted.age(now).unwrap_or_default());
    }
    let labels = |&(kind, reason): &_| PendingLabels { kind, reason };
    let counts = groups.iter().map(|(key, group)| (labels(key), group.count));
    let help = "Admitted pods that are not bound yet, by the kind of their slices and by the reason";
    gauges(encoder, "kerf_extender_pending_pods", help, counts)?;
    let ages = groups.iter().map(|(key, group)| (labels(key), group.oldest.as_secs_f64()));
    let help = "Seconds since the creation of the oldest of these pods; zero where there is none";
    gauges(encoder, "kerf_extender_oldest_pending_seconds", help, ages)
}

fn encode_nodes(seen: &Seen, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let counts = seen.conditions.iter();
    let counts = counts.map(|((kind, status), count)| ([("condition", *kind), ("status", *status)], *count));
    gauges(encoder, "kerf_gpunode_condition", "GpuNodes by the status of each condition", counts)?;
    let help = "Nodes whose GPUs are kerf's: those with a GpuNode, or with the labels of a managed node";
    gauge(encoder, "kerf_extender_managed_nodes", help, seen.managed)?;
    let unserved = seen.unserved.iter();
    let unserved =
        unserved.map(|(node, reason)| (NodeLabels { node: node.to_string(), reason: *reason }, 1_u32));
    let help = "A managed node that serves no pods, and why; always 1";
    gauges(encoder, "kerf_extender_unserved_node", help, unserved)
}

/// Encodes both resources of each quota, under the names of the policy's fields.
fn encode_quotas(quotas: &[QuotaUse], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let labels = |quota: &QuotaUse, resource| QuotaLabels {
        policy: quota.policy.to_string(),
        namespace: quota.namespace.clone().unwrap_or_default(),
        resource,
    };
    let both = |quota: &QuotaUse| {
        let memory =
            quota.cap.memory_gb.map(|limit| (labels(quota, "memoryGb"), limit, quota.used.memory_gb));
        let slices = quota.cap.slices.map(|limit| (labels(quota, "slices"), limit, quota.used.slices));
        memory.into_iter().chain(slices)
    };
    let limits = quotas.iter().flat_map(both).map(|(labels, limit, _)| (labels, limit));
    let help = "What a namespace may hold under a policy";
    gauges(encoder, "kerf_extender_quota_limit", help, limits)?;
    let used = quotas.iter().flat_map(both).map(|(labels, _, used)| (labels, used));
    let help = "What a namespace's pods hold or have reserved under a policy";
    gauges(encoder, "kerf_extender_quota_used", help, used)
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeGaugeValue,
) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (L, V)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::pod::Counted;
    use kerf_core::kind::Kind;

    fn pod(name: &str, reason: PendingReason) -> Pending {
        let counted = Counted { kind: KindLabel::Of(Kind::Mps), created: None };
        Pending { uid: name.into(), counted, request: "{}".into(), reason }
    }

    /// In a busy cluster some pod has always just found room, but no single pod is passed over.
    #[test]
    fn room_is_unused_as_long_as_one_pod_has_it_without_a_break() {
        let collector = TermCollector::new(Arc::default());
        let (start, step) = (Instant::now(), Duration::from_secs(15));
        let longest = |pods: &[Pending], steps: u32| collector.unused_room(pods, start + step * steps)["mps"];
        let (a, b) = (pod("a", PendingReason::Room), pod("b", PendingReason::Room));
        let (only_a, both, only_b) = ([a.clone()], [a, b.clone()], [b]);
        assert_eq!(longest(&only_a, 0), Duration::ZERO);
        assert_eq!(longest(&both, 1), step);
        assert_eq!(longest(&only_b, 2), step);
        assert_eq!(longest(&[pod("b", PendingReason::Full)], 3), Duration::ZERO);
        assert_eq!(longest(&only_b, 4), Duration::ZERO);
        assert_eq!(longest(&only_b, 6), 2 * step);
    }
}
