//! The faults of a daemon. Each text says what is wrong, and what kerf does or an admin has to do.

use crate::mps::answer::{MemoryReading, Percentage};
use crate::mps::word::{Scope, Word};
use kerf_core::units::MemoryMib;
use std::fmt;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(in crate::mps) enum Trouble {
    #[error("the GPU's compute mode cannot be set to {}: {reason}; it is tried again{}", mode(*.exclusive), open(*.exclusive))]
    Mode { exclusive: bool, reason: String },
    #[error("the MPS daemon cannot be started: {0}; it is tried again")]
    Start(String),
    #[error("the MPS daemon ended ({0}); it is started anew")]
    Ended(String),
    #[error(
        "the MPS daemon did not answer {word} ({failures} failed probes in a row); it is killed and started anew"
    )]
    Hung { word: Word, failures: u32 },
    #[error(
        "the MPS daemon does not answer; processes of pods run on its GPU, so it is killed and started anew only when they \
         have ended"
    )]
    Unresponsive,
    #[error("the MPS daemon did not answer within {0:?} of its start; it is killed and started anew")]
    NotReady(Duration),
    #[error(
        "MPS server {server} is not initialised within {within:?}; the daemon is killed and started anew"
    )]
    ServerNotReady { server: u32, within: Duration },
    #[error("the MPS daemon starts no server; it is asked again, and its log says why")]
    NoServer,
    #[error(
        "MPS server {server} does not end within {within:?} of its shutdown; the daemon is killed and started anew"
    )]
    ServerStays { server: u32, within: Duration },
    #[error("the MPS daemon refused {word} ({text:?}); it is asked again")]
    Refused { word: Word, text: String },
    #[error("{0}; it is tried again")]
    Client(String),
    #[error("the memory limit of {} was set to {wanted} and reads {read}; it is set again", whose(*.scope))]
    Memory { scope: Scope, wanted: MemoryMib, read: MemoryReading },
    #[error("the thread percentage of {} was set to {wanted} and reads {}; it is set again", whose(*.scope), read.0)]
    Threads { scope: Scope, wanted: u8, read: Percentage },
    #[error(
        "a client's fault ended the work of all {clients} clients of MPS server {server}; it takes no others until they \
         have left, and is shut down soon if they stay"
    )]
    Fault { server: u32, clients: usize },
    #[error(
        "the MPS daemon cannot be ended: {0}; if that lasts, the driver hangs, and the node has to be rebooted"
    )]
    Unkillable(String),
    #[error("what is left of the MPS daemon cannot be inspected or removed: {0}; it is tried again")]
    Remains(String),
}

impl Trouble {
    /// Whether the clients lost their work by the fault of one.
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Fault { .. })
    }
}

fn mode(exclusive: bool) -> &'static str {
    if exclusive { "EXCLUSIVE_PROCESS" } else { "what it was before MPS" }
}

/// The purpose of the mode, and how to do without it.
fn open(exclusive: bool) -> &'static str {
    if !exclusive {
        return "";
    }
    ", and no new MPS share is offered: without the mode a process that leaves the daemon has all of the GPU; set mps.exclusive: \
     false in the node's GpuNodePolicy to offer shares all the same"
}

fn whose(scope: Scope) -> String {
    match scope {
        Scope::Default => "new MPS servers".to_owned(),
        Scope::Server(server) => format!("MPS server {server}"),
    }
}

impl fmt::Display for MemoryReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => write!(f, "unlimited"),
            Self::Limit { amount, unit } => write!(f, "{}", MemoryMib(amount.saturating_mul(unit.0))),
        }
    }
}
