//! Why a device cannot be reached, and what to do about it.

use kerf_core::names::DeviceId;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a container could not open a device, or why what was made for one is still there.
#[derive(Debug, Error)]
pub enum AccessError {
    /// A device file of the driver's is missing.
    #[error(
        "{} is missing: run `nvidia-modprobe -c {gpu} -u` on the node, which loads the driver and makes it",
        path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// The GPU's minor number.
        gpu: u32,
    },
    /// Something else is where a device file of the driver's should be, for example one of a driver that was unloaded.
    #[error(
        "{} is not the driver's character device: remove it and run `nvidia-modprobe -c {gpu} -u` on the node",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The GPU's minor number.
        gpu: u32,
    },
    /// The driver has no MIG capabilities.
    #[error(
        "{} shows no MIG capabilities, so no MIG device can be opened: the node needs NVIDIA's driver with MIG support; \
         on a node with simulated GPUs start the agent with --no-device-access",
        path.display()
    )]
    NoCapabilities {
        /// Where they should be shown.
        path: PathBuf,
    },
    /// The driver does not know the instance.
    #[error("{} does not list {name}: the MIG instance is gone or not made yet, or its GPU's minor number changed", path.display())]
    NoSuchInstance {
        /// Where it should be listed.
        path: PathBuf,
        /// The capability.
        name: String,
    },
    /// The driver was told to leave device files to the administrator, who has not made this one.
    #[error(
        "{} must be made by the administrator (the driver runs with NVreg_ModifyDeviceFiles=0): mknod -m {mode:o} {} c \
         {major} {minor}",
        path.display(), path.display()
    )]
    ForAdministrator {
        /// The file.
        path: PathBuf,
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
        /// Its permissions.
        mode: u32,
    },
    /// No driver library was found.
    #[error(
        "no {library} in the library folders under {}: say with --driver-root where the driver is installed, or turn \
         CDI off with --cdi-dir=\"\" where NVIDIA's runtime brings the driver into containers",
        root.display()
    )]
    NoDriver {
        /// What was looked for.
        library: &'static str,
        /// Where.
        root: PathBuf,
    },
    /// The node lacks an IMEX channel that containers must have.
    #[error(
        "{} is missing, and --imex-required says that every container needs it: start NVIDIA's IMEX service on the node, or \
         leave --imex-required out",
        path.display()
    )]
    NoImexChannel {
        /// The channel's device file.
        path: PathBuf,
    },
    /// The device's id is no name in CDI's grammar.
    #[error(
        "{0} cannot be named in a CDI spec: a name has letters, digits and _ - . : and begins and ends with a letter or digit"
    )]
    Name(DeviceId),
    /// A path cannot be written as JSON.
    #[error("no CDI spec can be written: the paths that the agent was started with must be UTF-8")]
    Spec(#[source] serde_json::Error),
    /// A file of the driver's has a line that is not understood.
    #[error("{} is not understood by kerf: {line:?}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
    /// A file or folder could not be read or written.
    #[error("{}: {trouble}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        trouble: FileTrouble,
    },
}

impl AccessError {
    /// What became of a file or folder.
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { path, trouble: error.into() }
    }
}

/// Why a file or folder could not be read or written.
#[derive(Debug, Error)]
pub enum FileTrouble {
    /// ENOSPC or EDQUOT.
    #[error("its file system is full: free space or inodes there")]
    Full(#[source] io::Error),
    /// EROFS.
    #[error("its file system is read-only: mount it writable on the node and into the agent")]
    ReadOnly(#[source] io::Error),
    /// EACCES or EPERM.
    #[error("access is denied: the agent must run as root and privileged")]
    Denied(#[source] io::Error),
    /// A file where a folder should be, or the other way round.
    #[error("a file is where a folder should be, or a folder where a file should be: remove it")]
    InTheWay(#[source] io::Error),
    /// Anything else.
    #[error(transparent)]
    Other(io::Error),
}

impl From<io::Error> for FileTrouble {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::StorageFull | Kind::QuotaExceeded => Self::Full(error),
            Kind::ReadOnlyFilesystem => Self::ReadOnly(error),
            Kind::PermissionDenied => Self::Denied(error),
            Kind::NotADirectory | Kind::IsADirectory | Kind::AlreadyExists => Self::InTheWay(error),
            _ => Self::Other(error),
        }
    }
}
