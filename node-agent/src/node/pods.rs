//! The pods of the node, as the API server shows them.

use kerf_core::contract::WantedSlice;
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
