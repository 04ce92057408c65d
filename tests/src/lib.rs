//! Support for tests that cross a process boundary: a local control plane, child processes that end with the
//! test, and stand-ins for what test machines lack. No program of kerf depends on it.
#![forbid(unsafe_code)]

pub mod admission;
pub mod agent_checkpoint;
pub mod binaries;
pub mod chart;
pub mod churn;
pub mod cluster;
pub mod container_root;
pub mod control_plane;
pub mod docs;
pub mod fault_matrix;
pub mod fuzz;
pub mod gpu_nodes;
pub mod gpu_operator;
pub mod kubelet;
pub mod kubelet_rules;
pub mod leaders;
pub mod mixed_kinds;
pub mod monitoring;
pub mod mps;
pub mod nvidia_plugin;
pub mod openapi;
pub mod oracle;
pub mod overlays;
mod percentile;
pub mod pods;
pub mod process;
pub mod random;
mod relay;
pub mod services;
pub mod stand_in_leader;
pub mod static_node;
pub mod stranded;
pub mod volumes;

pub use percentile::percentile;
