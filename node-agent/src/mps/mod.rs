//! MPS: one `nvidia-cuda-mps-control` for each target (a GPU or a MIG device), kept as the agent wants it.
//!
//! ```text
//! wanted ─▶ supervise: a task per target [ Daemon decides ⇄ Target does ] ─▶ observed
//! ```
//!
//! A daemon outlives the agent, for clients run on it: at its start the agent adopts the daemons that it finds.
//! What is said here of the daemon's answers and timing was measured with driver 580 on an H200.

mod answer;
mod clients;
mod control;
mod daemon;
mod folder;
pub mod keep;
pub mod launch;
mod loss;
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

/// The daemon that a target should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The device memory that a server lets each client process have; zero for no limit.
    pub limit: MemoryMib,
    /// The multiprocessors that a server lets each client have, in percent, 1 to 100.
    pub threads: u8,
    /// Whether the GPU is in `EXCLUSIVE_PROCESS` mode meanwhile, so that nothing gets past the daemon.
    pub exclusive: bool,
    /// Whether processes of pods run on the GPU. A daemon that does not answer is then not killed, for its server's clients would
    /// lose their work.
    pub in_use: bool,
}

/// The daemons that should run, by what they see: the UUID of a GPU or of a MIG device, as `CUDA_VISIBLE_DEVICES` has it.
pub type WantedByTarget = BTreeMap<String, Wanted>;

/// Which daemons should run, and which are left as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Those that should run. All others end, but for the spared.
    pub wanted: WantedByTarget,
    /// Those of which nothing can be said now.
    pub spared: BTreeSet<String>,
}

/// What a target's daemon does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is being started or adopted, and has served nobody within these limits yet.
    Starting,
    /// It serves, while its limits are changed from these, or put back to them.
    Adjusting {
        /// The limit that was read back last.
        limit: MemoryMib,
        /// The percentage that was read back last.
        threads: u8,
    },
    /// A server accepts clients, and these limits were read back from it.
    Serving {
        /// The memory that each client process may have.
        limit: MemoryMib,
        /// The multiprocessors that each client may have, in percent.
        threads: u8,
    },
    /// It ended after it had served, and is started anew: a matter of a second, in which it is nobody's reason to go elsewhere.
    Restarting {
        /// How it ended.
        text: String,
    },
    /// It does not do what is wanted; what can be done about it is being done.
    Ill {
        /// What is wrong, and what is being done.
        text: String,
        /// Whether a client's fault is why: all clients of the server have lost their work.
        fault: bool,
    },
    /// It is not wanted any more; it is being stopped, and the compute mode put back.
    Stopping,
}

/// What is known of a target's daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What it does.
    pub state: State,
    /// Rises with each start of the daemon: the clients of an earlier one have lost their work. Kept over the agent's
    /// restarts, and not over the node's.
    pub generation: u64,
    /// The process ids of the daemon's servers. They hold device memory of their own (66 MiB on an H200).
    pub servers: BTreeSet<u32>,
    /// The process ids of the servers' clients, at the last probe.
    pub clients: BTreeSet<u32>,
}

/// What is known, by target. A target that is gone for good, its compute mode put back, is not in it.
pub type Observed = BTreeMap<String, Status>;

/// Where things are.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The folder of the targets' folders, such as `/run/kerf/mps`.
    pub root: PathBuf,
    /// `nvidia-cuda-mps-control`: a path, or a name that `PATH` finds.
    pub program: PathBuf,
    /// The executable whose hidden subcommand `mps-exec` becomes the daemon: the agent itself.
    pub launcher: PathBuf,
    /// The cgroup (v2) that daemons are put into. Those left in the cgroup of the agent's container end with it.
    pub cgroup: Option<PathBuf>,
    /// Whether a daemon gets a mount namespace of its own with a `/dev/shm` of its own. Needs `CAP_SYS_ADMIN`.
    pub private_shm: bool,
}

/// Reads and sets the compute mode of the GPU that a target is, or is of.
pub trait ComputeModes: Send + Sync + 'static {
    /// The mode; `DEFAULT` of a target that is there no more.
    ///
    /// # Errors
    ///
    /// Why it cannot be read, in words.
    fn mode(&self, target: &str) -> BoxFuture<'_, Result<ComputeMode, String>>;

    /// Sets it. To put a mode back a target that is there no more needs nothing, and is no error.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    fn set(&self, target: &str, mode: ComputeMode) -> BoxFuture<'_, Result<(), String>>;
}
