//! The node's GPUs, and the one thread on which they are called: NVML's calls block, some for seconds.

pub mod events;
#[cfg(test)]
pub(crate) mod fake;
pub mod limits;
mod thread;

pub use kerf_nvml::{
    Compute, ComputeMode, ComputePart, Driver, Gpu, GpuBackend, GpuError, GpuEvent, GpuInstance, GpuTrouble,
    Holder, Holders, MigMode, ModeRefusal, NvmlCode, Process, Utilization,
};
pub use thread::{GpuThread, Open, Silent};
