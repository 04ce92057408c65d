//! The agent as a process: real NVML calls on the simulated GPUs, a stand-in kubelet, an API server, and this test as the
//! extender that writes GpuNode.spec.

mod pause;
mod policy;
mod scene;
mod shares;
mod slices;
mod troubles;
mod upgrade;
