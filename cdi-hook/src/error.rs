//! Why a container's cache was not written.

use crate::cache::Unknown;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why the hook failed. The runtime then does not start the container, so only errors that an admin must see are here.
#[derive(Debug, Error)]
pub enum HookError {
    #[error(
        "usage: kerf-cdi-hook add-libraries /PATH/TO/LIBRARY… (with the container's state on the standard input)"
    )]
    Usage,
    #[error("the container's state on the standard input is not of the OCI runtime specification: {0}")]
    State(#[source] serde_json::Error),
    #[error("{} cannot be read: {source}", path.display())]
    Configuration {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} names no root folder of the container's own", path.display())]
    NoRoot { path: PathBuf },
    #[error("failed to {step} in the container's root {}: {source}", root.display())]
    File {
        step: &'static str,
        root: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl HookError {
    /// Whether the kernel denied access. In a user namespace the hook's root has no rights on files that the runtime
    /// did not give it, so this is no error.
    pub(crate) fn is_refused(&self) -> bool {
        let (Self::Configuration { source, .. } | Self::File { source, .. }) = self else { return false };
        source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// Why the cache is not changed. The container starts all the same, because not every container needs the driver's
/// libraries by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Skipped {
    #[error("the image has no folder /etc")]
    NoEtc,
    /// `/etc` or the cache is a volume of the pod's, or is reached through one.
    #[error("a volume is mounted at /etc or at /etc/ld.so.cache, and volumes are not written to")]
    Volume,
    #[error("the hook may not read the bundle or write to the container's root")]
    Refused,
    #[error("its file system is read-only")]
    ReadOnly,
    #[error("the kernel has no openat2, by which a container's files are opened safely: Linux 5.6 has")]
    OldKernel,
    /// The cache is no regular file, or far larger than any.
    #[error("/etc/ld.so.cache is no ordinary file of at most 16 MiB")]
    Odd,
    #[error("/etc/ld.so.cache is not understood: {0}")]
    Unknown(#[from] Unknown),
}
