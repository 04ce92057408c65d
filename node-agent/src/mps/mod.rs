//! MPS: runs one `nvidia-cuda-mps-control` for each target (a GPU or a MIG device) that needs it.
//!
//! ```text
//! desired ─▶ supervise: a task per target [ Daemon decides ⇄ Target does ] ─▶ observed
//! ```
//!
//! A daemon outlives the agent, because clients run on it; a new agent adopts the daemons that it finds. What comments
//! here say of the daemon's answers and timing was measured with driver 580 on an H200.

mod answer;
mod clients;
mod control;
mod daemon;
mod folder;
pub mod launch;
mod process;
mod procfs;
mod start;
mod supervise;
mod target;
mod timings;
mod word;

pub use answer::{Answer, AnswerError, MemoryReading, Percentage, ServerStatus};
pub use clients::max_clients;
pub use control::{AskError, Control};
pub use folder::{daemon_dir, pipe_dir};
pub(crate) use folder::{modes_before, targets};
pub use supervise::{leave, supervise};
pub use timings::Timings;
pub use word::{Scope, Word};

use crate::gpu::ComputeMode;
use futures::future::BoxFuture;
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The device memory that a server lets each client process have; zero for no limit.
    pub limit: MemoryMib,
    /// The multiprocessors that a server lets each client have, in percent, 1 to 100.
    pub threads: u8,
    /// Whether the GPU is in `EXCLUSIVE_PROCESS` mode meanwhile, so that no process bypasses the daemon.
    pub exclusive: bool,
    /// Whether processes of pods run on the GPU. Then an unresponsive daemon is not killed, because its server's
    /// clients would lose their work.
    pub in_use: bool,
}

/// The desired daemons by their device: the UUID of a GPU or of a MIG device, as in `CUDA_VISIBLE_DEVICES`.
pub type WantedByTarget = BTreeMap<String, Wanted>;

/// The desired daemons, and the targets whose daemons are not touched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Targets that need a daemon. All other daemons end, except for the spared.
    pub wanted: WantedByTarget,
    /// Targets whose desired state is unknown now.
    pub spared: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The daemon is being started or adopted, and has not served within these limits yet.
    Starting,
    /// It serves while its limits are changed from these values, or restored to them.
    Adjusting { limit: MemoryMib, threads: u8 },
    /// A server accepts clients, and these limits were read back from it.
    Serving {
        /// The memory that each client process may have.
        limit: MemoryMib,
        /// The multiprocessors that each client may have, in percent.
        threads: u8,
    },
    /// It ended after it had served, and is being restarted. That takes about a second, so pods need not be placed
    /// elsewhere.
    Restarting { text: String },
    /// It is not as desired; kerf tries to correct it.
    Ill {
        /// What is wrong, and what kerf does about it.
        text: String,
        /// Whether a client's fault is the cause: all clients of the server have lost their work.
        fault: bool,
    },
    /// It is no longer desired: kerf stops it and restores the compute mode.
    Stopping,
}

/// The observed state of a target's daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    /// Rises with each start of the daemon: the clients of an earlier one have lost their work. It survives restarts of
    /// the agent, but not of the node.
    pub generation: u64,
    /// The process ids of the daemon's servers. They hold device memory of their own (66 MiB on an H200).
    pub servers: BTreeSet<u32>,
    /// The process ids of the servers' clients, at the last probe.
    pub clients: BTreeSet<u32>,
}

/// The observed daemons by target. A target that is gone for good, with its compute mode restored, is not in it.
pub type Observed = BTreeMap<String, Status>;

/// Folders and programs for MPS.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The folder of the targets' folders, such as `/run/kerf/mps`.
    pub root: PathBuf,
    /// The path of `nvidia-cuda-mps-control`, or a name in `PATH`.
    pub program: PathBuf,
    /// The executable whose hidden subcommand `mps-exec` becomes the daemon: the agent itself.
    pub launcher: PathBuf,
    /// The cgroup (v2) for the daemons. Without it they end with the cgroup of the agent's container.
    pub cgroup: Option<PathBuf>,
    /// Whether a daemon gets its own mount namespace with its own `/dev/shm`. Needs `CAP_SYS_ADMIN`.
    pub private_shm: bool,
}

/// Reads and sets the compute mode of a target's GPU.
pub trait ComputeModes: Send + Sync + 'static {
    /// Returns the mode; `DEFAULT` for a target that no longer exists.
    ///
    /// # Errors
    ///
    /// Returns why it cannot be read, as a text.
    fn mode(&self, target: &str) -> BoxFuture<'_, Result<ComputeMode, String>>;

    /// Sets the mode. Restoring the mode of a target that no longer exists is no error, because nothing is left to
    /// restore.
    ///
    /// # Errors
    ///
    /// Returns why it failed, as a text.
    fn set(&self, target: &str, mode: ComputeMode) -> BoxFuture<'_, Result<(), String>>;
}
