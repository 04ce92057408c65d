//! A static node: one whose GPUs NVIDIA's own programs serve, unchanged, on the simulated NVML and the stand-in kubelet.

mod account;
mod caretaker;
mod container;
pub mod layouts;
mod node;
mod pod;
mod root;
mod spec;
mod volume;

pub use container::Exit;
pub use node::StaticNode;
pub use pod::NvidiaPod;
pub use spec::StaticNodeSpec;

/// The node label that names a layout, NVIDIA's default for config-manager's `--node-label`.
pub const CONFIG_LABEL: &str = "nvidia.com/device-plugin.config";
