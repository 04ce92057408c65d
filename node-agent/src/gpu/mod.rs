//! The node's GPUs, and the one thread on which they are called: NVML's calls block, some for seconds.

#[cfg(test)]
pub(crate) mod fake;
mod thread;

pub use kerf_nvml::{
    Compute, ComputeMode, ComputePart, Gpu, GpuBackend, GpuError, GpuInstance, Holder, Holders, MigMode,
    ModeRefusal, NvmlCode, Process,
};
pub use thread::GpuThread;
