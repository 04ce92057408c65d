//! Models the API server: its pods, its Bindings, and the Lease.

use kerf_core::ledger::{Found, Moment, Owner};
use kerf_core::names::{PodKey, PodUid};

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Pending,
    /// Bound to this node of the world.
    Bound(usize),
    /// Bound to a node outside the world.
    Elsewhere,
    Gone,
}

#[derive(Debug, Clone)]
pub struct Pod {
    pub owner: Owner,
    /// The index of its request in the setting. A recreated pod has the same request.
    pub request: usize,
    pub phase: Phase,
}

impl Pod {
    /// The pod at this index of the list.
    pub fn new(place: usize, request: usize) -> Self {
        let key = PodKey::new("default", format!("pod-{request}"));
        Self {
            owner: Owner { uid: PodUid::new(format!("uid-{place}")), key },
            request,
            phase: Phase::Pending,
        }
    }

    /// What a lookup by the agent of this node finds.
    pub fn found(&self, node: usize) -> Found {
        match self.phase {
            Phase::Pending => Found::Unbound,
            Phase::Bound(at) if at == node => Found::Here,
            Phase::Bound(_) | Phase::Elsewhere => Found::Elsewhere,
            Phase::Gone => Found::Gone,
        }
    }
}

/// The index in the list of the pod with this UID.
pub fn place(uid: &PodUid) -> usize {
    uid.as_str().strip_prefix("uid-").and_then(|place| place.parse().ok()).unwrap_or(usize::MAX)
}

#[derive(Debug, Clone)]
pub struct Binding {
    pub pod: usize,
    pub node: usize,
    pub leader: usize,
    pub attempt: u64,
    /// The API server executes the Binding before this time, or never.
    pub until: Moment,
    /// When the leader stops waiting for the answer.
    pub gives_up: Moment,
    /// Whether it has bound the pod; `None` until it was executed.
    pub bound: Option<bool>,
}

/// The Lease, with its holder's epoch.
#[derive(Debug, Clone)]
pub struct Lease {
    pub holder: usize,
    pub epoch: u64,
    pub renewed: Moment,
}
