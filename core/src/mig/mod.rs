//! Multi-Instance GPU: profiles, placements, and which sets of GPU instances are legal on a GPU.
//!
//! A geometry is placed (start and size) and legal by construction: [`Geometry::place`] is the only way to add an
//! instance. Tables come from NVML at run time; [`catalog`] has them for planning off a node and for tests. What is inside
//! one GPU instance, its compute instances, is a [`ComputeGeometry`].

pub mod catalog;
mod compute;
mod geometry;
mod profile;
mod table;

pub use compute::{ComputeGeometry, ComputeIllegal, ComputeInstance, ComputeProfile, UnknownComputeProfile};
pub use geometry::{Geometry, Illegal, Instance};
pub use profile::{Extras, Profile, UnknownProfile};
pub use table::{GiProfileId, MigTable, Placement, ProfileEntry};
