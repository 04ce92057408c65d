//! What metrics report of nodes, pods and quotas. No decision reads it.

use super::managed_nodes::ManagedNodes;
use super::node_objects::NodeObjects;
use super::pods::Pods;
use super::quotas::{QuotaUse, Quotas};
use crate::assumed::AssumedPods;
use crate::metric_labels::{ReservationState, Unserved};
use crate::objects::pod::{Counted, KnownPod};
use kerf_core::contract::{Condition, ConditionStatus, RequestDocument, RootProcesses};
use kerf_core::kind::{Kind, KindLabel};
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::Refusal;
use std::collections::BTreeMap;

/// The parts of the index that metrics read.
#[derive(Debug)]
pub struct Statistics<'i> {
    pub(super) managed: &'i ManagedNodes,
    pub(super) objects: &'i NodeObjects,
    pub(super) pods: &'i Pods,
    pub(super) quotas: &'i Quotas,
    pub(super) assumed: &'i AssumedPods,
}

impl<'i> Statistics<'i> {
    /// What metrics count a pod by, as far as it is known. If it has a slice, that slice's kind counts.
    #[must_use]
    pub fn counted(&self, uid: &PodUid) -> Counted {
        let counted = self.pods.get(uid).map(KnownPod::counted).unwrap_or_default();
        let node = self.managed.node_of(uid);
        let kind = node.and_then(|node| node.kind_of(uid)).map(KindLabel::Of);
        Counted { kind: kind.unwrap_or(counted.kind), ..counted }
    }

    /// Whether an MPS daemon accepts commands from the pod's processes, which its policy allows.
    #[must_use]
    pub fn may_command_mps(&self, uid: &PodUid) -> bool {
        let text = self.pods.get(uid).and_then(|pod| pod.template.request.as_deref());
        let document = text.and_then(|text| RequestDocument::parse(text).ok());
        let is_allowed = document.is_some_and(|document| document.root_processes == RootProcesses::Allowed);
        let node = self.managed.node_of(uid);
        let mut kinds = node.into_iter().flat_map(|node| node.reserved(uid)).map(|slice| slice.shape.kind());
        is_allowed && (node.is_none() || kinds.any(|kind| kind == Kind::Mps))
    }

    /// The number of pods with a reservation, by how far it is.
    #[must_use]
    pub fn reservation_counts(&self) -> [(ReservationState, usize); 3] {
        let proposed = self.managed.proposal_count();
        let accepted = self.managed.reservations().count().saturating_sub(proposed);
        [
            (ReservationState::Assumed, self.assumed.len()),
            (ReservationState::Proposed, proposed),
            (ReservationState::Accepted, accepted),
        ]
    }

    /// How much of each policy's quota is used.
    #[must_use]
    pub fn quota_uses(&self) -> Vec<QuotaUse> {
        self.quotas.uses()
    }

    /// The managed nodes that serve no pods, each with the reason. A node is managed if it has a GpuNode, or by its
    /// labels ([`is_managed`](kerf_core::managed::is_managed)). A cordoned or lost node without an agent is left out.
    #[must_use]
    pub fn unserved(&self) -> Vec<(&'i NodeName, Unserved)> {
        let serving = self.managed.iter().filter_map(|(name, node)| {
            let why = match node.serving().err()? {
                Refusal::AgentNotReady => Unserved::NotReady,
                Refusal::NotConnected => Unserved::NotConnected,
                _ => Unserved::Unreadable,
            };
            Some((name, why))
        });
        serving.chain(self.never_started().map(|name| (name, Unserved::NoAgent))).collect()
    }

    #[must_use]
    pub fn managed_nodes(&self) -> usize {
        self.managed.count() + self.never_started().count()
    }

    fn never_started(&self) -> impl Iterator<Item = &'i NodeName> {
        let managed = self.managed;
        self.objects.managed().filter(move |name| !managed.contains(name.as_str()))
    }

    /// How many `GpuNodes` have each condition in each status. If the agent is not connected, all its conditions count
    /// as unknown.
    #[must_use]
    pub fn condition_counts(&self) -> BTreeMap<(&'static str, &'static str), usize> {
        let all = Condition::ALL
            .iter()
            .flat_map(|kind| ConditionStatus::ALL.map(|status| (*kind, status.as_str())));
        let mut counts: BTreeMap<_, _> = all.map(|key| (key, 0)).collect();
        for (_, node) in self.managed.iter() {
            for kind in Condition::ALL {
                let status = node.status().condition(kind);
                let status = status.map_or(ConditionStatus::Unknown, |condition| condition.status);
                *counts.entry((kind, status.as_str())).or_default() += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
#[path = "statistics_tests.rs"]
mod tests;
