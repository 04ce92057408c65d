//! The file system that a container of the stand-in kubelet sees: this machine's programs as its image, what is mounted into
//! it, and nothing else of this machine.
//!
//! Processes share the machine's network, process ids and users: only mounts are the container's own. That takes root, or
//! user namespaces that an ordinary user may make (Ubuntu 24.04 and newer:
//! `sysctl kernel.apparmor_restrict_unprivileged_userns=0`).

mod enter;
mod image;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use enter::{EnterError, become_container, run_beside};

/// The folder of the image's own programs, which PATH has first.
pub const PROGRAMS: &str = "/opt/image/bin";

/// What a container's process becomes; read by the program `container_stand_in`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRoot {
    /// An empty folder, over which the root is put together in the process's own mount namespace.
    pub scratch: PathBuf,
    /// What is mounted, in any order.
    pub mounts: Vec<Mount>,
    /// Whether the root itself cannot be written (`readOnlyRootFilesystem`).
    pub read_only: bool,
    /// Where it starts.
    pub working_dir: PathBuf,
    /// Its whole environment.
    pub environment: BTreeMap<String, String>,
    /// The program, which PATH of the environment finds, and its arguments.
    pub command: Vec<String>,
}

impl ContainerRoot {
    /// Makes the scratch folder and writes the document that `container_stand_in` reads.
    pub fn write(&self, document: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.scratch)?;
        fs::write(document, serde_json::to_vec_pretty(self).map_err(io::Error::other)?)
    }
}

/// A file or a folder of this machine in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where it is on this machine.
    pub source: PathBuf,
    /// Where the container has it; absolute.
    pub target: PathBuf,
    /// Whether the container cannot write to it.
    pub read_only: bool,
}
