//! The pods of the node, as the API server shows them.

use super::Node;
use kerf_core::contract::WantedSlice;
use kerf_core::names::{PodKey, PodUid};
use kerf_core::resource::ResourceName;
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};

/// A pod that is bound to the node, has not ended, and asks for kerf's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePod {
    /// Its namespace and name.
    pub key: PodKey,
    /// Whether the kubelet has taken it on, and so has allocated for all its containers.
    pub admitted: bool,
    /// The names that it asks for, and how many devices of each its containers hold together.
    pub names: BTreeMap<ResourceName, usize>,
    /// Its ordinary init containers.
    pub inits: BTreeSet<String>,
    /// What each slice was asked to have, by the container that asked.
    pub requested: BTreeMap<String, MemoryMib>,
}

/// Pods by UID: one made anew under the same name is another.
pub type NodePods = BTreeMap<PodUid, NodePod>;

impl Node {
    /// Notes which reservations were fulfilled: their pods have got the slices. When they hold them no more they have ended, and
    /// the reservation is in no other pod's way while the leader has not released it yet.
    ///
    /// The kubelet's List has the pod's name only. A pod of the name that has just ended is not taken for the one that has the
    /// reservation: that cannot be bound before its slice is free.
    pub(super) fn note_kept_promises(&mut self) {
        let kept = self.ledger.desired().slices.iter().filter_map(|wanted| {
            let uid = &wanted.reservation.as_ref()?.uid;
            let is_kept = self.is_kept(wanted) || self.bindings.may_be(uid) && self.is_with_its_pod(wanted);
            is_kept.then(|| (wanted.id.clone(), uid.clone()))
        });
        self.kept = kept.collect();
    }

    /// Whether the pod that has reserved the slice has got it at some time.
    pub(super) fn is_kept(&self, wanted: &WantedSlice) -> bool {
        let kept = self.kept.get(&wanted.id);
        kept.is_some() && kept == wanted.reservation.as_ref().map(|reservation| &reservation.uid)
    }

    fn is_with_its_pod(&self, wanted: &WantedSlice) -> bool {
        let Some((device, reservation)) = self.device_of(wanted).zip(wanted.reservation.as_ref()) else {
            return false;
        };
        let is_its = self.account.owner(&device).is_none_or(|uid| *uid == reservation.uid);
        let held = self.account.holder(&device);
        let is_its = is_its
            && held.is_some_and(|h| h.name == reservation.resource && h.holder.key() == reservation.key());
        is_its && self.is_shown(&device)
    }
}
