//! Multi-Instance GPU: profiles, placements, and the sets of GPU instances that are legal on a GPU.
//!
//! A geometry is placed (start and size) and legal by construction, because [`Geometry::place`] is the only way to add
//! an instance. Tables come from NVML at run time; [`catalog`] has them for planning off a node and for tests. The
//! compute instances inside one GPU instance are a [`ComputeGeometry`].

pub mod catalog;
mod compute;
mod geometry;
mod profile;
mod table;

pub use compute::{ComputeGeometry, ComputeIllegal, ComputeInstance, ComputeProfile, UnknownComputeProfile};
pub use geometry::{Geometry, Illegal, Instance};
pub use profile::{Extras, Profile, UnknownProfile};
pub use table::{GiProfileId, MigTable, Placement, ProfileEntry};
