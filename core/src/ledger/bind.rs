//! The leader's steps from a pod's proposal to its Binding, for one bind.
//!
//! `Reserve` → done, and all slices are ready → `Mark` → done → Binding → `Outcome`, if the result of the Binding is
//! definite.

use super::{Answer, Limits, Moment, Order, OrderKind, Owner, Proposal, Rejection};
use crate::contract::{GpuNodeStatus, SliceState, SliceStatus};
use crate::names::PodUid;
use thiserror::Error;

/// One open bind of a pod. The agent answers its orders in their order.
#[derive(Debug, Clone)]
pub struct BindProgress {
    owner: Owner,
    epoch: u64,
    attempt: u64,
    gate: Moment,
    limits: Limits,
    shown: Shown,
    stage: Stage,
}

#[derive(Debug, Clone)]
enum Stage {
    New(Proposal),
    /// `Reserve` was sent at this time.
    Reserving {
        sent: Moment,
    },
    /// The agent has reserved. After `last` the leader sends no Binding.
    Cutting {
        last: Moment,
    },
    /// `Mark` was sent at this time.
    Marking {
        last: Moment,
        sent: Moment,
    },
    /// The Binding is on its way.
    Binding,
    Ended,
}

/// The state of the pod's slices in the leader's copy of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shown {
    None,
    Cutting,
    Ready,
    Failed(String),
}

/// The slices of one pod in the leader's copy of its node.
#[derive(Debug, Clone, Default)]
pub struct PodSlices<'a>(Vec<&'a SliceStatus>);

impl<'a> PodSlices<'a> {
    /// The slices in `status` that are reserved for the pod.
    #[must_use]
    pub fn for_pod(status: &'a GpuNodeStatus, uid: &PodUid) -> Self {
        let is_pods = |slice: &&SliceStatus| slice.reservation.as_ref().is_some_and(|r| r.uid == *uid);
        Self(status.slices.iter().filter(is_pods).collect())
    }
}

/// An event in a bind.
#[derive(Debug, Clone)]
pub enum Input<'a> {
    /// The bind starts; this is the first input.
    Opened,
    /// The agent has answered the last `Reserve` or `Mark`. Answers to other orders need not be passed on.
    Answered(&'a Answer),
    /// The pod's slices in the leader's copy of the node, passed on at each change.
    Shown(PodSlices<'a>),
    /// The stream to the agent has ended, so open orders stay unanswered.
    Disconnected,
    /// The result of the Binding.
    Posted(Posted),
    /// The bind's timeout has passed.
    GateOver,
    /// The leader shuts down and sends no further Binding.
    Closing,
}

/// The result of a Binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// The API server has bound the pod.
    Bound,
    /// The API server has rejected it, and will not execute it later.
    Refused,
    /// The API server has not answered, or its answer leaves the result open.
    Unknown,
}

/// What the caller must do; actions come in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send an order to the node's agent.
    Send(Order),
    /// Send the Binding at once, and pass its result on.
    Post {
        /// The number of its mark.
        attempt: u64,
    },
    /// The bind has ended. Further inputs do nothing.
    End(Result<(), BindFailure>),
}

/// Why a pod is not bound. Its reservation stays, unless the node's agent reports otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BindFailure {
    /// The agent does not reserve the places, or has no reservation of the pod any longer.
    #[error("the node's agent rejects the reservation: {0}")]
    Rejected(#[from] Rejection),
    /// A slice could not be made, with the agent's message.
    #[error("{0}")]
    SliceFailed(String),
    /// The leader's copy of the node has no slice of the pod any longer.
    #[error("the reservation is gone")]
    Released,
    /// The agent has not answered in time.
    #[error("the node's agent has not answered in time")]
    NoAnswer,
    /// The slices were not ready in time.
    #[error("slices are being cut; the reservation stays")]
    NotReady,
    /// The reservation may end before a Binding could be made.
    #[error("the reservation is about to expire")]
    Expiring,
    /// The stream to the node's agent has ended.
    #[error("the connection to the node's agent has ended")]
    Disconnected,
    /// This replica is not the leader any longer.
    #[error("this replica does not lead any more")]
    Deposed,
    /// The API server has rejected the Binding.
    #[error("the API server has refused the Binding")]
    Refused,
    /// It is unknown whether the pod is bound.
    #[error("it is not known whether the pod is bound")]
    Unknown,
}

impl BindFailure {
    /// Whether a newer copy of the node may offer other places for the pod.
    #[must_use]
    pub fn is_stale_proposal(&self) -> bool {
        matches!(self, Self::Rejected(Rejection::Taken(_) | Rejection::UnknownReservation))
    }
}

impl BindProgress {
    /// A bind of the proposal's owner by the leader of `epoch`, with its timeout at `gate`. `attempt` is unique for the
    /// pod and the epoch.
    #[must_use]
    pub fn new(proposal: Proposal, epoch: u64, attempt: u64, gate: Moment, limits: Limits) -> Self {
        let owner = proposal.owner.clone();
        Self { owner, epoch, attempt, gate, limits, shown: Shown::None, stage: Stage::New(proposal) }
    }

    /// Returns the actions that follow from an input. From `lease` on, this leader's Lease may belong to another
    /// replica.
    pub fn handle(&mut self, input: &Input<'_>, now: Moment, lease: Moment) -> Vec<Action> {
        if let Input::Shown(slices) = input {
            self.shown = Shown::from_slices(slices, &self.owner.uid);
        }
        if let Stage::Binding = self.stage {
            return if let Input::Posted(posted) = input { self.posted(*posted, now, lease) } else { vec![] };
        }
        if let Stage::Ended = self.stage {
            return Vec::new();
        }
        if now >= lease {
            // Another replica may lead now, so this one sends nothing, not even the outcome of a mark.
            self.stage = Stage::Ended;
            return vec![Action::End(Err(BindFailure::Deposed))];
        }
        match input {
            Input::Closing => return self.end(BindFailure::Deposed),
            Input::Disconnected => return self.end(BindFailure::Disconnected),
            Input::GateOver => return self.gate_over(),
            _ if now >= self.gate => return self.gate_over(),
            Input::Answered(answer) => return self.answered(answer, now),
            Input::Opened | Input::Shown(_) | Input::Posted(_) => {}
        }
        match &self.stage {
            Stage::New(proposal) => {
                let order = OrderKind::Reserve(proposal.clone());
                self.stage = Stage::Reserving { sent: now };
                vec![self.send(order)]
            }
            Stage::Cutting { last } => {
                let last = *last;
                self.cutting(last, now)
            }
            Stage::Reserving { .. } | Stage::Marking { .. } | Stage::Binding | Stage::Ended => Vec::new(),
        }
    }

    fn answered(&mut self, answer: &Answer, now: Moment) -> Vec<Action> {
        match (&self.stage, answer) {
            (Stage::Reserving { sent }, Ok(done)) => {
                // The agent counts from when it read the order, which is later, so this estimate is on the safe side.
                let last = *sent + done.lifetime.saturating_sub(self.limits.send);
                if self.shown == Shown::None {
                    // The copy has the reservation by now; its `Shown` input is still to come.
                    self.stage = Stage::Cutting { last };
                    return Vec::new();
                }
                self.cutting(last, now)
            }
            (Stage::Marking { last, sent }, Ok(_)) => {
                // The agent counts a Binding as over after `Limits::binding`, and only this part of it is for the
                // sending.
                if now >= (*last).min(*sent + self.limits.send) {
                    return self.end(BindFailure::Expiring);
                }
                self.stage = Stage::Binding;
                vec![Action::Post { attempt: self.attempt }]
            }
            (Stage::Marking { last, .. }, Err(Rejection::NotReady)) => {
                let last = *last;
                self.cutting(last, now)
            }
            (Stage::Reserving { .. } | Stage::Marking { .. }, Err(rejection)) => {
                self.end(BindFailure::Rejected(rejection.clone()))
            }
            (Stage::New(_) | Stage::Cutting { .. } | Stage::Binding | Stage::Ended, _) => Vec::new(),
        }
    }

    /// Continues once the agent has reserved.
    fn cutting(&mut self, last: Moment, now: Moment) -> Vec<Action> {
        self.stage = Stage::Cutting { last };
        if now >= last {
            return self.end(BindFailure::Expiring);
        }
        match &self.shown {
            Shown::None => self.end(BindFailure::Released),
            Shown::Failed(message) => {
                let failure = BindFailure::SliceFailed(message.clone());
                self.end(failure)
            }
            Shown::Cutting => Vec::new(),
            Shown::Ready => {
                self.stage = Stage::Marking { last, sent: now };
                // If the agent answers `NotReady`, it is newer than this copy. Then only a later `Shown` input counts
                // as ready.
                self.shown = Shown::Cutting;
                let mark = OrderKind::Mark { uid: self.owner.uid.clone(), attempt: self.attempt };
                vec![self.send(mark)]
            }
        }
    }

    fn gate_over(&mut self) -> Vec<Action> {
        match self.stage {
            Stage::New(_) | Stage::Reserving { .. } | Stage::Marking { .. } => {
                self.end(BindFailure::NoAnswer)
            }
            Stage::Cutting { .. } => self.end(BindFailure::NotReady),
            Stage::Binding | Stage::Ended => Vec::new(),
        }
    }

    fn posted(&mut self, posted: Posted, now: Moment, lease: Moment) -> Vec<Action> {
        self.stage = Stage::Ended;
        let (bound, result) = match posted {
            Posted::Bound => (Some(true), Ok(())),
            Posted::Refused => (Some(false), Err(BindFailure::Refused)),
            Posted::Unknown => (None, Err(BindFailure::Unknown)),
        };
        // After the end of the Lease another replica may lead, so this one does not even send the outcome.
        let outcome = bound.filter(|_| now < lease).map(|bound| self.outcome(bound));
        outcome.into_iter().chain([Action::End(result)]).collect()
    }

    fn outcome(&self, bound: bool) -> Action {
        self.send(OrderKind::Outcome { uid: self.owner.uid.clone(), attempt: self.attempt, bound })
    }

    fn send(&self, kind: OrderKind) -> Action {
        Action::Send(Order { epoch: self.epoch, kind })
    }

    /// Ends the bind without a Binding. `Outcome` is sent if the agent may have the mark, so that it does not wait for
    /// a Binding.
    fn end(&mut self, failure: BindFailure) -> Vec<Action> {
        let is_marked = matches!(self.stage, Stage::Marking { .. });
        self.stage = Stage::Ended;
        let outcome = is_marked.then(|| self.outcome(false));
        outcome.into_iter().chain([Action::End(Err(failure))]).collect()
    }
}

impl Shown {
    fn from_slices(PodSlices(slices): &PodSlices<'_>, uid: &PodUid) -> Self {
        let is_failed = |slice: &&&SliceStatus| slice.state == SliceState::Failed;
        if let Some(failed) = slices.iter().find(is_failed) {
            let message = failed.message.as_deref().unwrap_or("a slice could not be made");
            return Self::Failed(message.to_owned());
        }
        if slices.is_empty() {
            Self::None
        } else if slices.iter().all(|slice| slice.ready_for.as_ref() == Some(uid)) {
            Self::Ready
        } else {
            Self::Cutting
        }
    }
}

#[cfg(test)]
#[path = "bind_tests.rs"]
mod tests;
