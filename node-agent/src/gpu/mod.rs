//! The node's GPUs, and the one thread on which they are called: NVML's calls block, some for seconds.

#[cfg(test)]
pub(crate) mod fake;
mod thread;

pub use kerf_nvml::{Compute, Gpu, GpuBackend, GpuError, GpuInstance, NvmlCode};
pub use thread::GpuThread;
