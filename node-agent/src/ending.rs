//! Why the agent's process ends on its own. The kubelet restarts it, and the checkpoint makes that safe.

use crate::gpu::{GpuError, NvmlCode};
use kerf_runtime::shutdown::CancellationToken;
use std::sync::{Arc, OnceLock};
use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Ending {
    /// The driver is being upgraded, and the agent holds nothing of it any more.
    #[error(
        "the driver is being upgraded: {0}; the agent has closed NVML and serves the node again afterwards"
    )]
    Upgrade(String),
    /// The driver was reloaded under this process, so its view of the GPUs is no longer valid.
    #[error("the driver was loaded anew under the agent; a new process makes the recorded slices again")]
    Reloaded,
    /// The NVML library that this process has loaded does not match the driver's version.
    #[error(
        "{0}: NVML's library and the driver have different versions; a new process loads the library again. If this repeats, \
         finish the driver's upgrade or reboot the node"
    )]
    VersionMismatch(GpuError),
    #[error(
        "a thread that talks to NVML has ended by itself, which is a fault of kerf's; please report its panic message"
    )]
    ThreadEnded,
}

impl Ending {
    /// Returns the ending if the process cannot continue after this error.
    #[must_use]
    pub fn after(error: &GpuError) -> Option<Self> {
        match error {
            GpuError::Stopped => Some(Self::ThreadEnded),
            error if error.code() == NvmlCode::VersionMismatch => Some(Self::VersionMismatch(error.clone())),
            _ => None,
        }
    }

    /// The reason of the last `Ready` condition that is written.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Upgrade(_) => "DriverUpgrade",
            Self::Reloaded | Self::VersionMismatch(_) | Self::ThreadEnded => "AgentRestarts",
        }
    }
}

/// The time in which the agent serves the node. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Session {
    process: CancellationToken,
    stop: CancellationToken,
    ending: Arc<OnceLock<Ending>>,
}

impl Session {
    /// Creates a session that ends with `stop` at the latest.
    #[must_use]
    pub fn until(stop: &CancellationToken) -> Self {
        Self { process: stop.clone(), stop: stop.child_token(), ending: Arc::default() }
    }

    /// Ends the session. Only the first reason counts.
    pub fn end(&self, ending: Ending) {
        // `set` fails if the session has ended already; the earlier reason stays.
        drop(self.ending.set(ending));
        self.stop.cancel();
    }

    /// Cancelled when the process must end. For tasks that finish work after the session.
    #[must_use]
    pub fn process(&self) -> &CancellationToken {
        &self.process
    }

    /// Cancelled when the session ends, for any reason.
    #[must_use]
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// The reason if the session ended by itself; `None` if the process was stopped.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_a_new_process_can_fix_end_the_process() {
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
