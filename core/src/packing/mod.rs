//! Where a pod's slices go: whether a node has room, what taking it costs, and the exact places.
//!
//! The cost is the future capacity that is lost. A first rule: issue-sized work on it comes later, behind [`fit`].

mod cost;
mod fit;
mod mig;
mod share;

pub use cost::Cost;
pub use fit::{Fit, Placed, Refusal, Source, fit};
