//! Where a pod's slices go: whether a node has room, what taking it costs, and the exact places.
//!
//! The cost is what the fleet loses by it: [`Fleet`] knows what is left of it. [`fit`] places a whole pod on one node.

mod cost;
mod exacting;
mod fit;
mod fleet;
pub mod fraction;
mod instance;
mod layout;
mod mig;
mod share;
mod spread;
mod terms;
mod warm;

pub use cost::Cost;
pub use fit::{Fit, Placed, Refusal, Source, fit};
pub use fleet::{ClassId, Fleet, FleetGpu, Move};
pub use layout::laid_out;
pub(crate) use layout::{Standing, missing};
pub use mig::{Choice, Cut, PlaceId, PlaceSet};
pub use share::is_worth_whole;
pub use spread::Spread;
pub use terms::Terms;
pub use warm::warm;
