//! Where a pod's slices go: whether a node has room, what taking it costs, and the exact places.
//!
//! The cost is what the fleet loses by it: [`Fleet`] knows what is left of it. [`fit`] places a whole pod on one node.

mod choose_place;
mod cost;
mod exacting;
mod fit;
mod fleet;
pub mod fraction;
mod instance;
mod layout;
mod mig;
mod passed;
mod plan;
mod refusal;
mod room;
mod share;
mod spread;
mod terms;
mod warm;

pub use choose_place::{Place, Selection, choose_among, choose_place};
pub use cost::Cost;
pub use fit::{Fit, Placed, Source, fit};
pub use fleet::{ClassId, Fleet, FleetGpu, Move};
pub use layout::laid_out;
pub(crate) use layout::{Standing, missing};
pub use mig::{Choice, Cut, PlaceId, PlaceSet};
pub use passed::SchedulerVerdict;
pub use plan::{KindPlan, Rank, plans};
pub use refusal::Refusal;
pub use room::room;
pub use share::is_worth_whole;
pub use spread::Spread;
pub use terms::Terms;
pub use warm::warm;
