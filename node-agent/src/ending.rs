//! Why the agent's process ends before it is told to. The kubelet starts another, and the record makes that safe.

use crate::gpu::{GpuError, NvmlCode};
use kerf_runtime::shutdown::CancellationToken;
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// The reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Ending {
    /// The driver is upgraded, and nothing of the agent's holds it any more.
    #[error(
        "the driver is being upgraded: {0}; the agent has closed NVML and serves the node again afterwards"
    )]
    Upgrade(String),
    /// Another load of the driver runs than this process has seen: what is on the GPUs is not what it knows.
    #[error("the driver was loaded anew under the agent; a new process makes the recorded slices again")]
    Reloaded,
    /// The library that this process has loaded is not the driver's.
    #[error(
        "{0}: NVML's library and the driver have different versions; a new process loads the library again. If this repeats, \
         finish the driver's upgrade or reboot the node"
    )]
    VersionMismatch(GpuError),
    /// A thread that talks to NVML has panicked.
    #[error(
        "a thread that talks to NVML has ended by itself, which is a fault of kerf's; please report its panic message"
    )]
    ThreadEnded,
}

impl Ending {
    /// Whether the process cannot go on after this error.
    #[must_use]
    pub fn after(error: &GpuError) -> Option<Self> {
        match error {
            GpuError::Stopped => Some(Self::ThreadEnded),
            error if error.code() == NvmlCode::VersionMismatch => Some(Self::VersionMismatch(error.clone())),
            _ => None,
        }
    }

    /// The reason of the condition `Ready` that is written last.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Upgrade(_) => "DriverUpgrade",
            Self::Reloaded | Self::VersionMismatch(_) | Self::ThreadEnded => "AgentRestarts",
        }
    }
}

/// The time in which the agent serves the node. Its clones are one.
#[derive(Debug, Clone, Default)]
pub struct Session {
    process: CancellationToken,
    stop: CancellationToken,
    ending: Arc<OnceLock<Ending>>,
}

impl Session {
    /// A session that ends with `stop` at the latest.
    #[must_use]
    pub fn until(stop: &CancellationToken) -> Self {
        Self { process: stop.clone(), stop: stop.child_token(), ending: Arc::default() }
    }

    /// Ends it. The first reason holds.
    pub fn end(&self, ending: Ending) {
        // A session that has ended already ends for the reason that it has.
        drop(self.ending.set(ending));
        self.stop.cancel();
    }

    /// Cancelled when the process is told to end: for what has to be finished after the session.
    #[must_use]
    pub fn process(&self) -> &CancellationToken {
        &self.process
    }

    /// Cancelled at its end.
    #[must_use]
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Why it has ended, if not because the process was told to.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_new_process_can_mend_ends_the_process() {
        let call = |code| GpuError::Call { call: "nvmlInit_v2", code };
        for (error, ends) in [
            (GpuError::Stopped, true),
            (call(NvmlCode::VersionMismatch), true),
            (call(NvmlCode::DriverNotLoaded), false),
            (call(NvmlCode::Uninitialized), false),
            (call(NvmlCode::GpuIsLost), false),
            (GpuError::Hangs(30), false),
        ] {
            assert_eq!(Ending::after(&error).is_some(), ends, "{error}");
        }
    }
}
