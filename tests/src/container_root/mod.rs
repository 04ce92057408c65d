//! The file system of a container of the stand-in kubelet: this machine's programs as its image, the mounted
//! volumes, and no other file of this machine.
//!
//! Processes share the machine's network, process ids and users; only mounts are the container's own. That
//! takes root, or user namespaces that ordinary users may create (Ubuntu 24.04 and newer:
//! `sysctl kernel.apparmor_restrict_unprivileged_userns=0`).

mod enter;
mod image;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use enter::{EnterError, become_container, run_beside};

/// The folder of the image's own programs, which is first in PATH.
pub const PROGRAMS: &str = "/opt/image/bin";

/// Describes a container's process. The program `container_stand_in` reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRoot {
    /// An empty folder in which the process assembles the root, in its own mount namespace.
    pub scratch: PathBuf,
    pub mounts: Vec<Mount>,
    /// Whether the root itself is read-only (`readOnlyRootFilesystem`).
    pub read_only: bool,
    pub working_dir: PathBuf,
    pub environment: BTreeMap<String, String>,
    /// The program, which is searched in the environment's PATH, and its arguments.
    pub command: Vec<String>,
}

impl ContainerRoot {
    /// Creates the scratch folder and writes the document that `container_stand_in` reads.
    pub fn write(&self, document: &Path) -> io::Result<()> {
        fs::create_dir_all(&self.scratch)?;
        fs::write(document, serde_json::to_vec_pretty(self).map_err(io::Error::other)?)
    }
}

/// A file or folder of this machine in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The path on this machine.
    pub source: PathBuf,
    /// The absolute path in the container.
    pub target: PathBuf,
    pub read_only: bool,
}
