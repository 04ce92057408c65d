//! The node agent: cuts slices, serves them to the kubelet, and reports the node's state.
//!
//! ```text
//! orders ───────▶ Node: observe → plan → check ─▶ Executor (NVML) ─▶ device plugin lists
//!                   ▲                                                   │
//!                   └── pod-resources: holders, acknowledgements ◀── kubelet ─▶ GpuNode.status
//! ```
//!
//! [`node`] makes all decisions and does no I/O; [`reconcile`] is the loop around it.
#![forbid(unsafe_code)]

pub mod access;
pub mod api_server;
#[cfg(test)]
mod api_stand_in;
pub mod app;
pub mod applied_settings;
pub mod args;
pub mod checkpoint;
pub mod checkpoint_writer;
pub mod conflicting;
mod dcgm_pause;
pub mod device_plugin;
pub mod driver_load;
pub mod ending;
pub mod event;
pub mod executor;
pub mod gfd_labels;
pub mod gpu;
pub mod kubelet_api;
pub mod leave;
pub mod link;
pub mod metrics;
pub mod mps;
pub mod node;
pub mod node_events;
pub mod node_object;
pub mod pod_lookup;
pub mod pod_resources;
mod pod_view;
pub mod pod_watch;
pub mod policy_watch;
pub mod processes;
pub mod publisher;
pub mod reconcile;
pub mod reconcilers;
pub mod recorder;
pub mod rejected;
pub mod time_slice;
pub mod unanswered;
