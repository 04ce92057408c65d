//! The device plugin API: one socket for each resource name, all served for as long as the agent runs.
//!
//! It carries lists to the kubelet and grants to containers. [`Node`](crate::node::Node) decides which devices are
//! listed.

mod allocate;
mod allocations;
mod prefer;
mod registration;
mod server;

pub use allocations::Allocations;
pub use registration::{Served, serve};
