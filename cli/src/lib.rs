//! The commands of the `kerf` program. Their decisions are made in `kerf_core`.
#![forbid(unsafe_code)]

pub mod bench;
pub(crate) mod check;
pub(crate) mod columns;
pub mod command;
pub mod completion;
pub(crate) mod completion_words;
pub(crate) mod connection;
pub(crate) mod convert;
pub(crate) mod counted;
pub mod exit;
pub(crate) mod explain;
pub mod failure;
#[cfg(target_os = "linux")]
pub(crate) mod gpu;
pub(crate) mod input;
pub(crate) mod manage;
pub mod nodes;
pub mod output;
pub(crate) mod placement;
pub(crate) mod plugin_nodes;
pub mod policy;
pub(crate) mod progress;
pub(crate) mod release;
pub(crate) mod scheduler_config;
pub mod simulate;
pub(crate) mod snapshot;
pub(crate) mod uninstall;
pub(crate) mod version;
