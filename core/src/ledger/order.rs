//! What the extender's leader orders of a node's agent, and what the agent answers.

use crate::contract::{GpuNodeStatus, Reservation, SliceStatus};
use crate::names::{PodKey, PodUid};
use crate::packing::{Fit, Placed, Source};
use serde::{Deserialize, Serialize};
use std::ops::Add;
use std::time::Duration;
use thiserror::Error;

/// A point in time: how long after the start of the process that reads it. Two processes never compare theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, rest: Duration) -> Self {
        Self(self.0.saturating_add(rest))
    }
}

/// How long an agent keeps what nobody confirms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A reservation without a Binding lives so long after the last [`OrderKind::Reserve`] of its pod.
    pub reservation: Duration,
    /// The API server and its clients end a request within this time.
    pub request: Duration,
    /// A leader sends a Binding within this time of its mark, and none in the last part of a reservation's lifetime that is as long.
    pub send: Duration,
}

impl Limits {
    /// How long after its mark a Binding may be made.
    #[must_use]
    pub fn binding(&self) -> Duration {
        self.send + self.request
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reservation: Duration::from_mins(1),
            request: Duration::from_secs(70),
            send: Duration::from_secs(10),
        }
    }
}

/// The pod that has a reservation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The pod's UID: a pod of the same name created anew is another one.
    pub uid: PodUid,
    /// The pod's namespace and name.
    pub key: PodKey,
}

impl Owner {
    /// The owner of a reservation.
    #[must_use]
    pub fn of(reservation: &Reservation) -> Self {
        Self { uid: reservation.uid.clone(), key: reservation.key() }
    }
}

/// Places for all slices of a pod on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The pod.
    pub owner: Owner,
    /// One place a slice, in the order of the pod's request.
    pub places: Vec<Placed>,
}

impl Proposal {
    /// Proposes the places of a fit.
    #[must_use]
    pub fn from_fit(owner: Owner, fit: Fit) -> Self {
        Self { owner, places: fit.slices }
    }

    /// Names all places that the owner has already, as its node's agent reports them, for its reservation to live on.
    #[must_use]
    pub fn renewal(owner: Owner, status: &GpuNodeStatus) -> Self {
        let place = |slice: &SliceStatus| {
            let reservation =
                slice.reservation.as_ref().filter(|reservation| reservation.uid == owner.uid)?;
            Some(Placed {
                container: reservation.container.clone(),
                resource: reservation.resource,
                alone: reservation.alone,
                gpu: slice.gpu.clone(),
                shape: slice.shape,
                source: Source::Idle(slice.id.clone()?),
            })
        };
        let places = status.slices.iter().filter_map(place).collect();
        Self { owner, places }
    }
}

/// An order of a leader to a node's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The leader's epoch.
    pub epoch: u64,
    /// What to do.
    pub kind: OrderKind,
}

/// What a leader orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderKind {
    /// Reserve these places for the pod. A pod that has a reservation keeps its places, and its lifetime begins anew.
    Reserve(Proposal),
    /// The leader is about to send the pod's Binding: the reservation outlives everything until its end is known.
    Mark {
        /// The pod.
        uid: PodUid,
        /// The number of the Binding, unique for this pod and epoch.
        attempt: u64,
    },
    /// What became of a Binding.
    Outcome {
        /// The pod.
        uid: PodUid,
        /// The number of its mark.
        attempt: u64,
        /// Whether the pod is bound by it. `false`: it is not, and never will be.
        bound: bool,
    },
    /// Give the pod's slices back.
    Release {
        /// The pod.
        uid: PodUid,
        /// Why, for the agent's log.
        why: String,
    },
}

/// What an agent answers to an order.
pub type Answer = Result<Done, Rejection>;

/// The agent has done what was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// How long the reservation lives from now if nobody renews it; zero in answers to other orders than `Reserve`.
    pub lifetime: Duration,
}

/// Why an agent does not do what was ordered. Nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Rejection {
    /// The agent has heard a leader of a higher epoch.
    #[error("a leader of a higher epoch is obeyed")]
    OldEpoch,
    /// The agent accepts no reservation at present.
    #[error("{0}")]
    Closed(String),
    /// A place cannot be had.
    #[error("{0}")]
    Taken(String),
    /// The reservation cannot be recorded on the node's disk.
    #[error("{0}")]
    Disk(String),
    /// The pod has no reservation here.
    #[error("the pod has no reservation on this node")]
    UnknownReservation,
    /// A slice of the pod is not ready for it.
    #[error("a slice is not ready")]
    NotReady,
    /// A Binding of the pod may be made yet, or was made.
    #[error("a Binding of the pod may have been made")]
    BindingOpen,
    /// The agent does not understand the order.
    #[error("{0}")]
    Unreadable(String),
    /// The order exceeds a limit.
    #[error("{0}")]
    Limit(String),
}
