//! What the outside has to do after the index was told something.

use super::{Eviction, HeldBack, NobodyPreempted, NodeOrder};
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::collections::BTreeSet;
use std::fmt;

/// Work for the outside.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Nodes at which waiting binds must look again.
    pub changed: BTreeSet<NodeName>,
    /// Orders to nodes' agents.
    pub orders: Vec<NodeOrder>,
    /// Pods of whose existence the API server must be asked.
    pub unconfirmed: BTreeSet<PodUid>,
    /// Promises given back, for the log.
    pub released: Vec<Released>,
    /// Pods that are to restart elsewhere.
    pub evictions: Vec<Eviction>,
    /// Pods that are to be told of their namespace's quota.
    pub held_back: Vec<HeldBack>,
    /// Pods that are to be told why nobody is preempted for them.
    pub nobody_preempted: Vec<NobodyPreempted>,
    /// A leader of a newer epoch was seen.
    pub deposed: bool,
    /// Something may have come that a term waits for: a list has ended, or something is to be read anew.
    pub progress: bool,
}

/// A promise that was given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The pod's UID.
    pub uid: PodUid,
    /// Its namespace and name.
    pub pod: PodKey,
    /// Where it had its slices.
    pub node: NodeName,
    /// Why.
    pub why: Why,
}

/// Why a promise was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The pod was deleted.
    Gone,
    /// The pod has ended.
    Ended,
    /// The pod was bound to another node.
    BoundElsewhere,
    /// The scheduler may not use the node for the pod any more, or its agent does not serve it.
    NodeUnusable,
    /// The pod was not bound within the reservation's lifetime.
    Expired,
    /// Nobody used it, and a pod that is being bound waited for it.
    Blocking,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "pod deleted",
            Self::Ended => "pod ended",
            Self::BoundElsewhere => "pod bound to another node",
            Self::NodeUnusable => "node not usable for the pod any more",
            Self::Expired => "pod not bound within the reservation's lifetime",
            Self::Blocking => "pod is not being bound, and another waited for its slice",
        })
    }
}
