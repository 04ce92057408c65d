//! kerf on the command line: its commands. What they decide is core's.
#![forbid(unsafe_code)]

pub mod bench;
pub mod check;
pub mod completion;
pub mod convert;
pub mod explain;
pub mod failure;
pub mod gpu;
pub mod manage;
pub mod nodes;
pub mod plugin_nodes;
pub mod policy;
pub mod release;
pub mod scheduler_config;
pub mod simulate;
pub mod uninstall;
