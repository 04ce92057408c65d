//! Why a container's cache was not written.

use crate::cache::Unknown;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why the hook failed, and with it the start of the container.
#[derive(Debug, Error)]
pub enum HookError {
    /// The command line is not the hook's.
    #[error(
        "usage: kerf-cdi-hook add-libraries /PATH/TO/LIBRARY… (with the container's state on the standard input)"
    )]
    Usage,
    /// The state cannot be read.
    #[error("the container's state on the standard input is not of the OCI runtime specification: {0}")]
    State(#[source] serde_json::Error),
    /// The bundle's configuration cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Configuration {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The bundle has no root of its own.
    #[error("{} names no root folder of the container's own", path.display())]
    NoRoot {
        /// The bundle's configuration.
        path: PathBuf,
    },
    /// A file of the container's could not be read or written.
    #[error("failed to {step} in the container's root {}: {source}", root.display())]
    File {
        /// What failed.
        step: &'static str,
        /// The container's root on the host.
        root: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl HookError {
    /// Whether the kernel refused it. In a user namespace the hook's root is nobody to files that the runtime did not give it.
    pub(crate) fn is_refused(&self) -> bool {
        let (Self::Configuration { source, .. } | Self::File { source, .. }) = self else { return false };
        source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// Why the cache stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Skipped {
    /// No `/etc`.
    #[error("the image has no folder /etc")]
    NoEtc,
    /// `/etc` or the cache is a volume of the pod's, or is reached through one.
    #[error("a volume is mounted at /etc or at /etc/ld.so.cache, and volumes are not written to")]
    Volume,
    /// The hook may not.
    #[error("the hook may not read the bundle or write to the container's root")]
    Refused,
    /// Nothing can be written.
    #[error("its file system is read-only")]
    ReadOnly,
    /// The kernel is older than 5.6.
    #[error("the kernel has no openat2, by which a container's files are opened safely: Linux 5.6 has")]
    OldKernel,
    /// The cache is no ordinary file, or far larger than any.
    #[error("/etc/ld.so.cache is no ordinary file of at most 16 MiB")]
    Odd,
    /// The cache is of another format.
    #[error("/etc/ld.so.cache is not understood: {0}")]
    Unknown(#[from] Unknown),
}
