//! From the observed to the desired state of one node, as an ordered list of steps.
//!
//! [`plan`] proposes; [`check`] accepts or rejects by its own rules; the agent's executor runs accepted plans and
//! decides nothing. No plan touches a held slice.

mod check;
mod instances;
mod model;
mod propose;
mod replicas;
mod shares;

pub use check::{Violation, check};
pub use model::{
    Allowed, Observed, ObservedGpu, ObservedInstance, ObservedPart, ObservedReplica, ObservedShare, Obstacle,
    Plan, Step,
};
pub use propose::plan;
