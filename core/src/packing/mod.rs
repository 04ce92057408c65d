//! Places for a pod's slices: whether a node has room, the cost of taking it, and the exact places.
//!
//! The cost is the fleet's loss; [`Fleet`] has the state of all GPUs for that. [`fit`] places a whole pod on one node.

mod asked;
mod choose_place;
mod cost;
mod exacting;
mod fit;
mod fleet;
pub mod fraction;
mod instance;
mod join;
mod layout;
mod mig;
mod passed;
mod plan;
mod refusal;
mod share;
mod spread;
mod terms;
mod warm;

#[cfg(test)]
mod golden_tests;

pub use asked::Asked;
pub use choose_place::{Place, Selection, choose_place};
pub use cost::Cost;
pub use fit::{Fit, Placed, Source, fit};
pub use fleet::{ClassId, Eviction, Fleet, FleetGpu};
pub(crate) use layout::{LayoutDifference, missing};
pub use mig::{Choice, Cut, PlaceId, PlaceSet};
pub use passed::SchedulerVerdict;
pub use plan::{KindPlan, Rank, plans};
pub use refusal::Refusal;
pub use share::is_worth_whole;
pub use spread::Spread;
pub use terms::Terms;
pub use warm::warm;
