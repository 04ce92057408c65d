//! The pods of the node, as the API server shows them.

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
    /// What its Binding has assigned to it, as a ledger has it.
    pub assigned: Vec<WantedSlice>,
}

/// Pods by UID: one made anew under the same name is another.
pub type NodePods = BTreeMap<PodUid, NodePod>;
