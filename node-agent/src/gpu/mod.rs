//! The node's GPUs: what is observed of them, and the two ways in which they are changed.
//!
//! A [`GpuBackend`] answers and acts; what should be cut is decided elsewhere. Its calls block, so they run on a
//! thread of their own ([`GpuThread`]).

mod backend;
mod error;
#[cfg(test)]
pub(crate) mod fake;
pub mod nvml;
mod thread;

pub use backend::{Compute, Gpu, GpuBackend, GpuInstance};
pub use error::{GpuError, NvmlCode};
pub use thread::GpuThread;
