//! The agent as a process: real NVML calls on the simulated GPUs, a stand-in kubelet, an API server, and a stand-in for
//! the extender's leader that sends the test's orders.

mod pause;
mod policy;
mod scene;
mod shares;
mod slices;
mod troubles;
mod upgrade;
