//! The CDI hook that adds the driver's libraries to a container's library cache (`kerf-cdi-hook`), and its program on
//! the host.
//!
//! Runtimes start hooks on the host, so the agent copies the program from its image into a folder of the host. It is
//! kerf's own on every node. NVIDIA's hook for the same purpose depends on the host's toolkit version and executes the
//! host's `ldconfig` on the container's files. An agent beside a driver in a container cannot see whether it is
//! installed.

use super::driver::DriverFile;
use super::error::AccessError;
use rustix::fs::{StatVfsMountFlags, statvfs};
use serde::Serialize;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const NAME: &str = "kerf-cdi-hook";

const COMMAND: &str = "add-libraries";

/// The stage at which the hook runs: the container's root is mounted, and paths are the host's (OCI runtime
/// specification, `config.md`).
const MOMENT: &str = "createContainer";

/// Without an environment of its own a hook would get the container's (CVE-2025-23266).
const ENVIRONMENT: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// Seconds after which the runtime stops the hook, which takes milliseconds.
const TIMEOUT: u32 = 10;

/// Every user may execute it, because in a user namespace the runtime's root is an unprivileged user on the host.
const MODE: u32 = 0o755;

#[derive(Debug, Clone)]
pub struct HookPlaces {
    /// The program in the agent's image.
    pub program: PathBuf,
    /// The folder that it is copied to; the path is the same on the host.
    pub folder: PathBuf,
}

#[derive(Debug, Serialize)]
pub(super) struct Hook<'a> {
    #[serde(rename = "hookName")]
    moment: &'a str,
    path: &'a Path,
    args: Vec<&'a str>,
    env: [&'a str; 1],
    timeout: u32,
}

impl<'a> Hook<'a> {
    /// Makes the hook for the libraries among these files; `None` if there are none.
    pub(super) fn new(program: &'a Path, driver: &'a [DriverFile]) -> Option<Self> {
        let libraries = driver.iter().filter(|file| file.is_library());
        let mut libraries = libraries.filter_map(|file| file.container.to_str()).peekable();
        libraries.peek()?;
        let args = [NAME, COMMAND].into_iter().chain(libraries).collect();
        Some(Self { moment: MOMENT, path: program, args, env: [ENVIRONMENT], timeout: TIMEOUT })
    }
}

impl HookPlaces {
    /// Copies the program to the host unless the same one is there. Returns its path; `None` if the image has no
    /// program or the folder forbids execution, and then containers run without the hook.
    pub(super) fn install(&self) -> Result<Option<PathBuf>, AccessError> {
        let path = self.path();
        let wanted = match fs::metadata(&self.program) {
            Ok(wanted) => wanted,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(AccessError::file(&self.program)(error)),
        };
        let failed = |error| AccessError::file(&path)(error);
        let identity = |metadata: &fs::Metadata| Some((metadata.len(), metadata.modified().ok()?));
        let is_there = fs::symlink_metadata(&path)
            .is_ok_and(|there| there.is_file() && identity(&there) == identity(&wanted));
        if !is_there {
            DirBuilder::new().recursive(true).mode(MODE).create(&self.folder).map_err(failed)?;
            self.copy(&path, wanted.modified().ok()).map_err(failed)?;
            tracing::info!(file = %path.display(), "CDI hook installed");
        }
        let flags = statvfs(&self.folder).map_err(|error| failed(error.into()))?.f_flag;
        Ok(Some(path).filter(|_| !flags.contains(StatVfsMountFlags::NOEXEC)))
    }

    /// Removes the program; one that is missing counts as removed.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(self.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    /// Replaces the file as a whole, because a runtime may start it at any time. Its modification time lets the next
    /// check see that it is the same.
    fn copy(&self, path: &Path, modified: Option<std::time::SystemTime>) -> io::Result<()> {
        let mode = Permissions::from_mode(MODE);
        let mut draft = tempfile::Builder::new().permissions(mode.clone()).tempfile_in(&self.folder)?;
        io::copy(&mut File::open(&self.program)?, &mut draft)?;
        // The umask has removed bits of the mode, so set it again.
        draft.as_file().set_permissions(mode)?;
        if let Some(modified) = modified {
            draft.as_file().set_modified(modified)?;
        }
        draft.as_file().sync_all()?;
        // Close it before the rename, because a file that is open for writing cannot be executed.
        draft.into_temp_path().persist(path).map_err(|error| error.error)
    }
}
