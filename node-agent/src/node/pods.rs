//! The pods of the node, as the API server shows them.

use super::Node;
use kerf_core::names::{PodKey, PodUid, SliceId};
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
    /// Notes which promises were kept: their pods have got the slices. When they hold them no more they have ended, and
    /// what was promised is nobody else's obstacle while the leader has not taken the promise back yet.
    pub(super) fn note_kept_promises(&mut self) {
        let mut kept: BTreeMap<SliceId, PodUid> = BTreeMap::new();
        for wanted in &self.spec.slices {
            let Some(reservation) = &wanted.reservation else { continue };
            let bound = self.pods.as_ref().is_some_and(|pods| pods.contains_key(&reservation.uid));
            let by_its_pod = self.device_of(wanted).is_some_and(|device| {
                let is_its = self.account.owner(&device).is_none_or(|uid| *uid == reservation.uid);
                let held = self.account.holder(&device);
                is_its
                    && held.is_some_and(|h| {
                        h.name == reservation.resource && h.holder.key() == reservation.key()
                    })
            });
            let before = self.kept.get(&wanted.id) == Some(&reservation.uid);
            if before || bound && by_its_pod {
                kept.insert(wanted.id.clone(), reservation.uid.clone());
            }
        }
        self.kept = kept;
    }
}
