//! The hook that adds the driver's libraries to a container's library cache (`kerf-cdi-hook`), and its program on the host.
//!
//! Runtimes start hooks on the host, so the program of the agent's image is copied into a folder of the host's. It is kerf's own
//! on every node: NVIDIA's hook of the same purpose depends on which version of its toolkit the host has, executes the host's
//! `ldconfig` on the container's files, and an agent beside a driver in a container does not see whether it is there.

use super::driver::DriverFile;
use super::error::AccessError;
use rustix::fs::{StatVfsMountFlags, statvfs};
use serde::Serialize;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The program's name on the host.
const NAME: &str = "kerf-cdi-hook";

/// Its command.
const COMMAND: &str = "add-libraries";

/// When it runs: the container's root is mounted, and the path is the host's (OCI runtime specification, `config.md`).
const MOMENT: &str = "createContainer";

/// A hook without an environment of its own would get that of the container (CVE-2025-23266).
const ENVIRONMENT: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// Seconds after which the runtime ends it. It takes milliseconds.
const TIMEOUT: u32 = 10;

/// Whoever the runtime runs as may start it: in a user namespace root is nobody on the host.
const MODE: u32 = 0o755;

/// Where the hook's program is.
#[derive(Debug, Clone)]
pub struct HookPlaces {
    /// The program as the agent's image has it.
    pub program: PathBuf,
    /// The folder that it is copied to, the same on the host.
    pub folder: PathBuf,
}

/// The hook in a CDI specification.
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
    /// For the libraries among these files; `None` if there are none.
    pub(super) fn new(program: &'a Path, driver: &'a [DriverFile]) -> Option<Self> {
        let libraries = driver.iter().filter(|file| file.is_library());
        let mut libraries = libraries.filter_map(|file| file.container.to_str()).peekable();
        libraries.peek()?;
        let args = [NAME, COMMAND].into_iter().chain(libraries).collect();
        Some(Self { moment: MOMENT, path: program, args, env: [ENVIRONMENT], timeout: TIMEOUT })
    }
}

impl HookPlaces {
    /// Copies the program to the host if another one is there or none. Returns its path, and `None` where containers have to do
    /// without it: no program in the image, or a folder from which nothing may be executed.
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

    /// Removes the program; one that is not there is removed.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(self.path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    /// Whole or not at all: a runtime may start it at any time. Its time tells the next look that it is the same.
    fn copy(&self, path: &Path, modified: Option<std::time::SystemTime>) -> io::Result<()> {
        let mode = Permissions::from_mode(MODE);
        let mut draft = tempfile::Builder::new().permissions(mode.clone()).tempfile_in(&self.folder)?;
        io::copy(&mut File::open(&self.program)?, &mut draft)?;
        // The umask has taken its part of the mode.
        draft.as_file().set_permissions(mode)?;
        if let Some(modified) = modified {
            draft.as_file().set_modified(modified)?;
        }
        draft.as_file().sync_all()?;
        // Closed before it can be executed: a file that is open for writing is busy.
        draft.into_temp_path().persist(path).map_err(|error| error.error)
    }
}
