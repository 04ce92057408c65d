//! The shared edge: everything outside the domain that several of kerf's programs need.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod admin;
pub mod args;
pub mod cluster_policy;
pub mod destinations;
pub mod duration;
pub mod event_note;
mod exposition;
pub mod gpu_node;
pub mod histogram;
mod listener;
pub mod machine;
pub mod plugin_pod;
pub mod policy_file;
pub mod serve;
pub mod shutdown;
#[cfg(any(test, feature = "stand-in"))]
pub mod stand_in;
pub mod telemetry;
pub mod tls;
mod version;

pub use version::VERSION;
