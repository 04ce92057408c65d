//! Packing of GPU instances: the cost of a place, and the cheapest of a fleet's places.
//!
//! A cut GPU is a set of [places](PlaceSet). Its value depends on its [state](states), and the value of a profile's
//! room on the [prices](prices) of the fleet. [`groups`] finds the best place without a search of every GPU.

mod choose;
mod groups;
mod model;
mod places;
mod prices;
mod states;

pub use choose::{Choice, Cut};
pub(super) use choose::{has_compute, serving};
pub(crate) use groups::{Groups, Order, Way};
pub(crate) use model::Model;
pub use places::{PlaceId, PlaceSet};
