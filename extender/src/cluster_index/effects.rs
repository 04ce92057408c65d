//! What the caller has to do after a change of the index, which does no I/O itself.

use super::managed_nodes::NodeOrder;
use super::pod_events::{HeldBack, NoPreemption};
use kerf_core::names::{NodeName, PodKey, PodUid};
use std::collections::BTreeSet;
use std::fmt;

/// The work that changes of the index leave for the caller.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Nodes whose waiting binds must check again.
    pub changed: BTreeSet<NodeName>,
    /// Orders to nodes' agents.
    pub orders: Vec<NodeOrder>,
    /// Pods that must be looked up with the API server.
    pub unconfirmed: BTreeSet<PodUid>,
    /// Reservations that were released, for the log.
    pub released: Vec<Released>,
    /// Pods to evict for others.
    pub evictions: Vec<Eviction>,
    /// Pods that get an Event about their namespace's quota.
    pub held_back: Vec<HeldBack>,
    /// Pods that get an Event about why no pod is preempted for them.
    pub no_preemption: Vec<NoPreemption>,
    /// A leader of a newer epoch was seen, so this term must end.
    pub deposed: bool,
    /// A term that waits on the index must check again: a list has ended, or something has to be read again.
    pub progress: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    pub uid: PodUid,
    pub pod: PodKey,
    pub node: NodeName,
    /// The UID of the pod that gets the room.
    pub makes_room_for: PodUid,
    /// The namespace and name of that pod.
    pub makes_room_for_pod: PodKey,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    pub uid: PodUid,
    pub pod: PodKey,
    pub node: NodeName,
    pub reason: ReleaseReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseReason {
    Gone,
    Ended,
    BoundElsewhere,
    /// The scheduler no longer offers the node for the pod, or its agent does not serve.
    NodeUnusable,
    Expired,
    /// It was unused, and blocked a pod that is being bound.
    Blocking,
}

impl fmt::Display for ReleaseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "pod deleted",
            Self::Ended => "pod ended",
            Self::BoundElsewhere => "pod bound to another node",
            Self::NodeUnusable => "node not usable for the pod any more",
            Self::Expired => "pod not bound within the reservation's lifetime",
            Self::Blocking => "pod is not being bound, and its slice blocks another pod",
        })
    }
}
