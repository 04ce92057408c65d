//! The orders of the extender's leader to a node's agent, and the agent's answers.

use crate::contract::{GpuNodeStatus, Reservation, SliceStatus};
use crate::names::{PodKey, PodUid};
use crate::packing::{Fit, Placed, Source};
use serde::{Deserialize, Serialize};
use std::ops::Add;
use std::time::Duration;
use thiserror::Error;

/// A point in time, counted from the start of the process that reads it. Two processes never compare theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, rest: Duration) -> Self {
        Self(self.0.saturating_add(rest))
    }
}

/// Time limits for reservations without a confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The lifetime of a reservation without a Binding, from the last [`OrderKind::Reserve`] of its pod.
    pub reservation: Duration,
    /// The time after which the API server or its client has ended every request.
    pub request: Duration,
    /// The time between a mark and its Binding. A leader also sends no Binding in the last part of this length of a
    /// reservation's lifetime.
    pub send: Duration,
}

impl Limits {
    /// The time after a mark in which its Binding may be made.
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
    /// The UID of the pod, which distinguishes it from a recreated pod of the same name.
    pub uid: PodUid,
    /// The namespace and name of the pod.
    pub key: PodKey,
}

impl Owner {
    /// The owner of a reservation.
    #[must_use]
    pub fn from_reservation(reservation: &Reservation) -> Self {
        Self { uid: reservation.uid.clone(), key: reservation.key() }
    }
}

/// Places for all slices of a pod on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The pod that gets the reservation.
    pub owner: Owner,
    /// One place for each slice, in the order of the pod's request.
    pub places: Vec<Placed>,
}

impl Proposal {
    /// Proposes the places that packing has found.
    #[must_use]
    pub fn from_fit(owner: Owner, fit: Fit) -> Self {
        Self { owner, places: fit.slices }
    }

    /// Proposes the places that the owner already has by its agent's report, so that its reservation is renewed.
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
    /// The epoch of the leader.
    pub epoch: u64,
    /// The action that is ordered.
    pub kind: OrderKind,
}

/// The actions that a leader can order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderKind {
    /// Reserve these places for the pod. A pod that has a reservation keeps its places, and its lifetime starts again.
    Reserve(Proposal),
    /// The leader is about to send the pod's Binding, so the reservation must stay until the result is known.
    Mark {
        /// The UID of the pod.
        uid: PodUid,
        /// The number of the Binding, unique for this pod and epoch.
        attempt: u64,
    },
    /// Reports the result of a Binding.
    Outcome {
        /// The UID of the pod.
        uid: PodUid,
        /// The number of the Binding's mark.
        attempt: u64,
        /// Whether it has bound the pod. `false` means that it has not and never will.
        bound: bool,
    },
    /// Release the pod's slices, which stay as idle capacity.
    Release {
        /// The UID of the pod.
        uid: PodUid,
        /// The reason, for the agent's log.
        why: String,
    },
}

/// The answer of an agent to an order.
pub type Answer = Result<Done, Rejection>;

/// The agent has executed the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The time until the reservation ends without a renewal; zero in answers to orders other than `Reserve`.
    pub lifetime: Duration,
}

/// Why an agent rejects an order. The ledger is then unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Rejection {
    /// The agent has received a higher epoch.
    #[error("a leader of a higher epoch is obeyed")]
    OldEpoch,
    /// The agent accepts no reservation at present, for this reason.
    #[error("{0}")]
    Closed(String),
    /// A place is not available, for this reason.
    #[error("{0}")]
    Taken(String),
    /// The reservation could not be written to the node's disk.
    #[error("{0}")]
    Disk(String),
    /// The pod has no reservation on this node.
    #[error("the pod has no reservation on this node")]
    UnknownReservation,
    /// A slice of the pod is not ready for it.
    #[error("a slice is not ready")]
    NotReady,
    /// A Binding of the pod was made, or may still be made.
    #[error("a Binding of the pod may have been made")]
    BindingOpen,
    /// The agent cannot read the order.
    #[error("{0}")]
    Unreadable(String),
    /// The order exceeds a limit of the agent.
    #[error("{0}")]
    Limit(String),
}
