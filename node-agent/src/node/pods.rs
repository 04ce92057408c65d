//! The pods of the node, as the API server shows them.

use kerf_core::contract::{Holder, WantedSlice};
use kerf_core::names::{PodKey, PodUid};
use kerf_core::resource::ResourceName;
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};

/// A pod that is bound to the node, has not ended, and requests names of kerf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePod {
    pub key: PodKey,
    /// Whether the kubelet has admitted it, and so has allocated for all its containers.
    pub admitted: bool,
    /// The names that it requests, with the number of devices that its containers hold together.
    pub names: BTreeMap<ResourceName, usize>,
    pub inits: BTreeSet<String>,
    /// The memory requested for each slice, by container.
    pub requested: BTreeMap<String, MemoryMib>,
    /// The slices that its Binding has assigned, in the ledger's form.
    pub assigned: Vec<WantedSlice>,
}

/// Pods by UID, because a recreated pod of the same name is another pod.
pub type NodePods = BTreeMap<PodUid, NodePod>;

/// Bound pods that request names of kerf, once the API server has listed them.
#[derive(Debug, Default)]
pub(super) struct Pods(Option<NodePods>);

impl Pods {
    pub(super) fn take(&mut self, pods: NodePods) {
        self.0 = Some(pods);
    }

    /// The pods; `None` until the API server has listed them.
    pub(super) fn listed(&self) -> Option<&NodePods> {
        self.0.as_ref()
    }

    /// Whether the API server shows the pod as bound and not ended.
    pub(super) fn is_bound(&self, uid: &PodUid) -> bool {
        self.0.as_ref().is_some_and(|pods| pods.contains_key(uid))
    }

    /// Whether the pod is bound, or may be because the API server has listed no pods yet.
    pub(super) fn may_be_bound(&self, uid: &PodUid) -> bool {
        self.0.as_ref().is_none_or(|pods| pods.contains_key(uid))
    }

    pub(super) fn is_admitted(&self, uid: &PodUid) -> bool {
        self.0.as_ref().and_then(|pods| pods.get(uid)).is_some_and(|pod| pod.admitted)
    }

    pub(super) fn key(&self, uid: &PodUid) -> Option<PodKey> {
        Some(self.0.as_ref()?.get(uid)?.key.clone())
    }

    pub(super) fn uid(&self, key: &PodKey) -> Option<&PodUid> {
        self.find(key).map(|(uid, _)| uid)
    }

    /// The memory that the container requested; `None` if its pod does not say.
    pub(super) fn requested(&self, holder: &Holder) -> Option<MemoryMib> {
        self.find(&holder.key())?.1.requested.get(&holder.container).copied()
    }

    fn find(&self, key: &PodKey) -> Option<(&PodUid, &NodePod)> {
        self.0.iter().flatten().find(|(_, pod)| pod.key == *key)
    }
}
