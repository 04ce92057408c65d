//! Packing of GPU instances: what a place costs, and which of a fleet's places costs least.
//!
//! A cut GPU is a set of [places](PlaceSet); what it is worth depends on its [state](states); what a profile's room is
//! worth, on the [prices](prices) of the fleet. [`groups`] finds the best place without looking at every GPU.

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
