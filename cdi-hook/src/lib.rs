//! The OCI hook that lets a container find the driver's libraries by name: it adds them to the container's
//! `/etc/ld.so.cache`.
//!
//! `ldconfig -p`, by which Triton and others find `libcuda.so.1`, shows that cache only. The loader of an image of
//! another distribution than the host's does not search the folders of the host either, but it reads the cache.
//!
//! # Safety of the host
//! A `createContainer` hook runs as root on the host, and strangers write the container's file system. NVIDIA's hook
//! runs the host's `ldconfig` on it, in namespaces of its own. This one executes nothing:
//! - It reads one file and writes one file. It opens both below a descriptor of the container's root by `openat2` with
//!   `RESOLVE_IN_ROOT` and `RESOLVE_NO_XDEV`, so that neither a link nor a race leads out of the root, nor into a volume,
//!   which may be a folder of the host's.
//! - The program is static, so no loader reads `LD_PRELOAD`. The CDI specification gives it an environment of its own.
//! - The cache is parsed in safe code, with a limit on its size. A cache that cannot be parsed stays as it is.
//! - It needs no `ldconfig` on the host. The image's own entries keep their order, so that an image loads the same
//!   libraries as before.
#![forbid(unsafe_code)]

mod cache;
mod error;
mod root;
mod state;

pub use cache::{Unknown, add};
pub use error::{HookError, Skipped};
pub use root::add_to_cache;

use std::io::Read;
use std::path::Path;

#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    Written,
    Complete,
    Skipped(Skipped),
}

pub const COMMAND: &str = "add-libraries";

/// Runs `add-libraries PATH…` on the container whose state (OCI runtime specification, `runtime.md`) is at `state`.
pub fn run(arguments: impl IntoIterator<Item = String>, state: impl Read) -> Result<Done, HookError> {
    let mut arguments = arguments.into_iter();
    if arguments.next().as_deref() != Some(COMMAND) {
        return Err(HookError::Usage);
    }
    let libraries: Vec<String> = arguments.collect();
    if !libraries.iter().all(|path| is_library(path)) {
        return Err(HookError::Usage);
    }
    match state::root(state).and_then(|root| add_to_cache(&root, &libraries)) {
        // An error would keep the container from starting, and in a user namespace a denied access is no fault.
        Err(error) if error.is_refused() => Ok(Done::Skipped(Skipped::Refused)),
        done => done,
    }
}

/// Whether the path can stand in a cache. It must be absolute and have a name. A zero byte would end the string early.
fn is_library(path: &str) -> bool {
    Path::new(path).is_absolute() && !path.ends_with('/') && !path.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_error_keeps_no_container_from_starting() {
        let error =
            |kind: std::io::ErrorKind| HookError::Configuration { path: "c".into(), source: kind.into() };
        assert!(error(std::io::ErrorKind::PermissionDenied).is_refused());
        assert!(!error(std::io::ErrorKind::NotFound).is_refused() && !HookError::Usage.is_refused());
    }

    #[test]
    fn only_absolute_paths_of_libraries_are_accepted() {
        for bad in
            [&["add-libraries", "lib/libcuda.so.1"][..], &["add-libraries", "/usr/lib/"], &["other"], &[]]
        {
            let arguments = bad.iter().map(|word| (*word).to_owned());
            assert!(matches!(run(arguments, &b"{}"[..]), Err(HookError::Usage)), "{bad:?}");
        }
    }
}
