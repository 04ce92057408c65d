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

pub(crate) mod access;
pub(crate) mod api_server;
#[cfg(test)]
mod api_stand_in;
pub mod app;
pub(crate) mod applied_settings;
pub mod args;
pub(crate) mod checkpoint;
pub(crate) mod checkpoint_writer;
pub(crate) mod conflicting;
mod dcgm_pause;
pub(crate) mod device_plugin;
pub(crate) mod driver_load;
pub(crate) mod ending;
pub(crate) mod event;
pub(crate) mod executor;
pub(crate) mod gfd_labels;
pub mod gpu;
pub mod kubelet_api;
pub(crate) mod leave;
pub(crate) mod link;
pub(crate) mod metrics;
pub mod mps;
pub(crate) mod node;
pub(crate) mod node_events;
pub(crate) mod node_object;
pub(crate) mod pod_lookup;
pub(crate) mod pod_resources;
mod pod_view;
pub(crate) mod pod_watch;
pub(crate) mod policy_watch;
pub(crate) mod processes;
pub(crate) mod publisher;
pub(crate) mod reconcile;
pub(crate) mod reconcilers;
pub(crate) mod recorder;
pub(crate) mod rejected;
pub(crate) mod time_slice;
pub(crate) mod unanswered;
