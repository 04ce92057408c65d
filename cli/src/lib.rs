//! The commands of the `kerf` program. Their decisions are made in `kerf_core`.
#![forbid(unsafe_code)]

pub mod bench;
pub mod check;
pub mod columns;
pub mod command;
pub mod completion;
pub mod completion_words;
pub mod connection;
pub mod convert;
pub mod counted;
pub mod exit;
pub mod explain;
pub mod failure;
#[cfg(target_os = "linux")]
pub mod gpu;
pub mod input;
pub mod manage;
pub mod nodes;
pub mod output;
pub mod placement;
pub mod plugin_nodes;
pub mod policy;
pub mod progress;
pub mod release;
pub mod scheduler_config;
pub mod simulate;
pub mod snapshot;
pub mod uninstall;
pub mod version;
