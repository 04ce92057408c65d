//! The node's GPUs, and the threads that call them: NVML's calls block, some for seconds.

#[cfg(test)]
pub(crate) mod fake;
mod lane;
pub mod limits;
mod thread;

pub use kerf_nvml::{
    Compute, ComputeMode, ComputePart, Driver, Gpu, GpuBackend, GpuError, GpuEvent, GpuInstance, GpuTrouble,
    Holder, Holders, MigMode, ModeRefusal, NvmlCode, Process, RowRemapping, Topology, Utilization,
};
pub use thread::{GpuThread, Open, Unresponsive};
