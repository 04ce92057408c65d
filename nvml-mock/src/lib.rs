//! NVML's C interface over simulated GPUs whose state is a file.
//!
//! Built as a shared library it replaces `libnvidia-ml.so.1`: a program that loads it by path runs unchanged. Built as
//! a Rust library it is the other side: the documents that tests and demos write (the configuration and the control
//! file) and read (the state).
//!
//! Everything but `abi` is free of unsafe code: tables (`model`, `facts`, `tables`, `profile`, `compute_profile`),
//! rules, changes of state (`lifecycle`, `mode`, `ecc`, `memory_limits`), files (`store`, `control_watch`,
//! `proc_files`, `sys_files`), calls (`session`) and faults (`gate`). It shares no code with kerf-core on purpose,
//! because its MIG rules are a second opinion. Only `tests/geometry.rs` uses both, and compares them.

#![deny(unsafe_code)]

mod code;
mod compute_profile;
mod config;
mod control;
mod control_watch;
mod ecc;
mod facts;
mod fault;
mod files;
mod gate;
mod handle;
mod happening;
mod identity;
mod library;
mod lifecycle;
mod load;
mod memory_limits;
mod mode;
mod model;
mod proc_files;
mod profile;
mod rules;
mod session;
mod state;
mod store;
mod sys_files;
mod tables;

#[expect(unsafe_code, reason = "the boundary to C: exported names, and pointers that callers own")]
mod abi;

pub use abi::exported_functions;
pub use code::NvmlCode;
pub use config::{ConfigError, DEFAULT_DRIVER_VERSION, GpuConfig, Island, MigMode, MockConfig};
pub use control::MockControl;
pub use ecc::{EccCounts, EccMemory, EccState};
pub use fault::{ANY_FUNCTION, Fault, KillMoment, Strike};
pub use files::{CONFIG_ENV, CONTROL_ENV, FileError, MockFiles, PROC_ENV, STATE_ENV};
pub use happening::{EccErrors, EccKind, EccLocation, GpuReset, Xid};
pub use library::{library_near, library_path};
pub use load::{Process, ProcessKind};
pub use model::Model;
pub use proc_files::capability_minor;
pub use profile::Profile;
pub use rules::Placement;
pub use state::{
    ComputeInstance, GpuInstance, GpuState, HangingCall, MemoryLimits, MigModeState, MockState, Slice,
};
