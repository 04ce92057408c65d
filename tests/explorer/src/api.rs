//! The API server: its pods, its Bindings, and the Lease.

use kerf_core::ledger::{Found, Moment, Owner};
use kerf_core::names::{PodKey, PodUid};

/// Where a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Pending,
    /// Bound to this node of the world.
    Bound(usize),
    /// Bound to a node that is not of the world.
    Elsewhere,
    Gone,
}

/// A pod.
#[derive(Debug, Clone)]
pub struct Pod {
    pub owner: Owner,
    /// Its request, by its place in the setting. A pod that is created anew asks for the same.
    pub request: usize,
    pub phase: Phase,
}

impl Pod {
    /// The pod at this place of the list.
    pub fn new(place: usize, request: usize) -> Self {
        let key = PodKey::new("default", format!("pod-{request}"));
        Self {
            owner: Owner { uid: PodUid::new(format!("uid-{place}")), key },
            request,
            phase: Phase::Pending,
        }
    }

    /// What a look-up by the agent of this node finds.
    pub fn found(&self, node: usize) -> Found {
        match self.phase {
            Phase::Pending => Found::Unbound,
            Phase::Bound(at) if at == node => Found::Here,
            Phase::Bound(_) | Phase::Elsewhere => Found::Elsewhere,
            Phase::Gone => Found::Gone,
        }
    }
}

/// The place in the list of the pod of this UID.
pub fn place(uid: &PodUid) -> usize {
    uid.as_str().strip_prefix("uid-").and_then(|place| place.parse().ok()).unwrap_or(usize::MAX)
}

/// A Binding that was sent.
#[derive(Debug, Clone)]
pub struct Binding {
    pub pod: usize,
    pub node: usize,
    pub leader: usize,
    pub attempt: u64,
    /// The API server executes it before this time, or never.
    pub until: Moment,
    /// When the leader waits no longer for the answer.
    pub gives_up: Moment,
    /// Whether it has bound the pod, once it was executed.
    pub bound: Option<bool>,
}

/// Who leads.
#[derive(Debug, Clone)]
pub struct Lease {
    pub holder: usize,
    pub epoch: u64,
    pub renewed: Moment,
}
