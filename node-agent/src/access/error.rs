//! Errors of device access, each with its remedy.

use kerf_core::names::DeviceId;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a container could not open a device, or why files made for one could not be removed.
#[derive(Debug, Error)]
pub enum AccessError {
    #[error(
        "{} is missing: run `nvidia-modprobe -c {gpu} -u` on the node, which loads the driver and makes it",
        path.display()
    )]
    Missing { path: PathBuf, gpu: u32 },
    /// Another file is at the path of a device file, for example one of an unloaded driver.
    #[error(
        "{} is not the driver's character device: remove it and run `nvidia-modprobe -c {gpu} -u` on the node",
        path.display()
    )]
    Foreign { path: PathBuf, gpu: u32 },
    #[error(
        "{} shows no MIG capabilities, so no MIG device can be opened: the node needs NVIDIA's driver with MIG support; \
         on a node with simulated GPUs start the agent with --no-device-access",
        path.display()
    )]
    NoCapabilities {
        /// Where the driver should list them.
        path: PathBuf,
    },
    /// The driver does not list the MIG instance.
    #[error("{} does not list {name}: the MIG instance is gone or not made yet, or its GPU's minor number changed", path.display())]
    NoSuchInstance {
        /// Where the driver should list it.
        path: PathBuf,
        name: String,
    },
    /// The driver leaves device files to the administrator, and this one is missing.
    #[error(
        "{} must be made by the administrator (the driver runs with NVreg_ModifyDeviceFiles=0): mknod -m {mode:o} {} c \
         {major} {minor}",
        path.display(), path.display()
    )]
    ForAdministrator { path: PathBuf, major: u32, minor: u32, mode: u32 },
    #[error(
        "no {library} in the library folders under {}: say with --driver-root where the driver is installed, or turn \
         CDI off with --cdi-dir=\"\" where NVIDIA's runtime brings the driver into containers",
        root.display()
    )]
    NoDriver {
        library: &'static str,
        /// The driver's root, as the agent sees it.
        root: PathBuf,
    },
    #[error(
        "{} is missing, and --imex-required says that every container needs it: start NVIDIA's IMEX service on the node, or \
         leave --imex-required out",
        path.display()
    )]
    NoImexChannel { path: PathBuf },
    #[error(
        "{0} cannot be named in a CDI spec: a name has letters, digits and _ - . : and begins and ends with a letter or digit"
    )]
    Name(DeviceId),
    /// A path is not UTF-8, so it cannot be written as JSON.
    #[error("no CDI spec can be written: the paths that the agent was started with must be UTF-8")]
    Spec(#[source] serde_json::Error),
    /// A file of the driver has a line in an unknown format.
    #[error("{} is not understood by kerf: {line:?}", path.display())]
    Unreadable { path: PathBuf, line: String },
    #[error("{}: {trouble}", path.display())]
    File {
        path: PathBuf,
        #[source]
        trouble: FileTrouble,
    },
}

impl AccessError {
    /// Makes a function that turns an I/O error on `path` into [`AccessError::File`].
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { path, trouble: error.into() }
    }
}

#[derive(Debug, Error)]
pub enum FileTrouble {
    /// The error codes `ENOSPC` and `EDQUOT`.
    #[error("its file system is full: free space or inodes there")]
    Full(#[source] io::Error),
    /// The error code `EROFS`.
    #[error("its file system is read-only: mount it writable on the node and into the agent")]
    ReadOnly(#[source] io::Error),
    /// The error codes `EACCES` and `EPERM`.
    #[error("access is denied: the agent must run as root and privileged")]
    Denied(#[source] io::Error),
    #[error("a file is where a folder should be, or a folder where a file should be: remove it")]
    InTheWay(#[source] io::Error),
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
