//! Reservations in the index: what pods ask for, where they are reserved or assumed, and how reservations end.

use super::{ClusterIndex, IndexedNode, Why};
use crate::ask::Ask;
use crate::assumed::{AssumedPod, KindChoice, LIFETIME};
use crate::metric_labels::ReservationState;
use crate::pod::KnownPod;
use crate::template::Template;
use kerf_core::contract::PassedKind;
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::{Refusal, fit};
use std::time::Instant;

/// Why nothing can be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreservable {
    /// The node cannot serve the pod.
    Refused(Refusal),
    /// The pod's request is not known.
    UnknownPod,
}

impl From<Refusal> for Unreservable {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl ClusterIndex {
    /// A pod's request, and the kinds that a filter chose for it. The pod is no longer assumed anywhere.
    pub(super) fn ask_of(
        &mut self,
        uid: &PodUid,
        read: Option<Ask>,
        promised: Option<Ask>,
    ) -> Result<(Ask, Option<KindChoice>), Unreservable> {
        let (expected, choice) = self.drop_assumed(uid).map(|t| (t.ask, t.choice)).unzip();
        let ask = match expected.or(read).or(promised) {
            Some(ask) => ask,
            None => self.pods.get(uid).ok_or(Unreservable::UnknownPod)?.ask()?,
        };
        Ok((ask, choice))
    }

    /// The best kinds that a node has for a pod that no filter has sent there.
    pub(super) fn best_kinds(&self, node: &IndexedNode, ask: &Ask) -> Result<KindChoice, Refusal> {
        if !ask.document.containers.iter().any(|container| container.resource.is_neutral()) {
            return Ok(KindChoice::default());
        }
        let fit = fit(&node.shown_inventory(), &ask.document, &self.fleet)?;
        Ok(fit.rank.plan(&ask.document).unwrap_or_default().into())
    }

    /// Records the chosen kinds of a pod that got a reservation.
    pub(super) fn note_choice(&mut self, uid: &PodUid, ask: &Ask, passed: Vec<PassedKind>) {
        if passed.is_empty() {
            self.lead.passed.remove(uid);
        } else {
            self.lead.passed.insert(uid.clone(), passed);
        }
        // Pods whose name fixes the kind were counted as demand when they came.
        if let Some((slice, pod)) = self.slice_of_any_kind(uid, ask).zip(self.pods.get(uid)) {
            self.fractions.learn(slice, pod.template.compute);
        }
    }

    /// The node on which a pod has a reservation.
    #[must_use]
    pub fn place_of(&self, uid: &PodUid) -> Option<&NodeName> {
        self.places.get(uid).or_else(|| self.statics.promised(uid).map(|promised| &promised.node))
    }

    /// Releases a reservation that the pod cannot use, unless its Binding may have been made. Returns whether it is
    /// released.
    pub fn give_up(&mut self, uid: &PodUid) -> bool {
        let bound = self.pods.get(uid).is_some_and(|pod| pod.node.is_some());
        !bound && !self.is_posting(uid) && (self.release_static(uid) || self.release(uid, Why::NodeUnusable))
    }

    /// Records that the pod is bound, before the watch shows it.
    pub fn bound(&mut self, uid: &PodUid, key: &PodKey, node: &NodeName) {
        self.lead.pending_bindings.remove(uid);
        self.lead.passed.remove(uid);
        self.lead.uses.note_bound(uid);
        if !self.places.has(uid) {
            return;
        }
        let mut pod = self
            .pods
            .get(uid)
            .cloned()
            .unwrap_or_else(|| KnownPod::new(uid.clone(), key.clone(), Template::default()));
        pod.node = Some(node.clone());
        self.pods.insert(uid.clone(), pod);
        self.note_movable(uid);
    }

    /// Assumes a pod on the node where it will most probably be bound, with the kinds that serve it there.
    pub fn expect(&mut self, pod: OwnerInEpoch, ask: Ask, choice: KindChoice, name: &NodeName, now: Instant) {
        self.drop_assumed(&pod.uid);
        let charged = self.expected_charge(name, &pod, &ask);
        let assumed = AssumedPod { pod, ask, choice, until: now + LIFETIME, leaving: None, charged };
        self.lead.assumed.put(name, assumed);
        self.touch(name);
    }

    /// The node on which a pod is assumed.
    #[must_use]
    pub fn expected_on(&self, uid: &PodUid) -> Option<&NodeName> {
        self.lead.assumed.node_of(uid)
    }

    /// Ends a pod's assumed place, and returns it.
    pub fn drop_assumed(&mut self, uid: &PodUid) -> Option<AssumedPod> {
        let (node, assumed) = self.lead.assumed.take(uid)?;
        self.touch(&node);
        Some(assumed)
    }

    /// Drops assumed pods that were not bound in time.
    pub fn expire(&mut self, now: Instant) {
        for node in self.lead.assumed.expire(now) {
            self.touch(&node);
        }
    }

    /// The number of pods with a reservation, by how far it is.
    #[must_use]
    pub fn reservation_counts(&self) -> [(ReservationState, usize); 3] {
        let proposed: usize = self.copies.values().map(super::copy::NodeCopy::unanswered).sum();
        [
            (ReservationState::Tentative, self.lead.assumed.len()),
            (ReservationState::Proposed, proposed),
            (ReservationState::Accepted, self.places.count().saturating_sub(proposed)),
        ]
    }

    pub(super) fn touch(&mut self, name: &NodeName) {
        if self.nodes.touch(name) || self.is_static(name) {
            self.lead.unschedulable.changed(name);
        }
    }
}
