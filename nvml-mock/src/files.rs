//! The mock's files: their names, the environment variables with their paths, and reading and writing JSON as a whole.
//!
//! Locking and caching are in store.rs.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The variable with the path of the configuration file, which is needed while there is no state file.
pub const CONFIG_ENV: &str = "KERF_NVML_MOCK_CONFIG";
/// The variable with the path of the state file. Without it the mock answers like a machine without a driver.
pub const STATE_ENV: &str = "KERF_NVML_MOCK_STATE";
/// The variable with the path of the control file, which may be missing, appear and change at any time.
pub const CONTROL_ENV: &str = "KERF_NVML_MOCK_CONTROL";
/// The variable with a folder that replaces `/proc`, in which the kernel module's files are kept up to date; optional.
pub const PROC_ENV: &str = "KERF_NVML_MOCK_PROC";

/// Why a file of the mock could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// The file could not be written or renamed into place.
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    /// The content is not the expected JSON.
    #[error("{path} is not valid: {source}; see the README of nvml-mock for the format")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{0}")]
    Config(#[from] crate::config::ConfigError),
}

/// The three files of one simulated node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MockFiles {
    pub config: PathBuf,
    /// The state file; its lock is beside it as `<state>.lock`.
    pub state: PathBuf,
    pub control: PathBuf,
}

impl MockFiles {
    /// The files `config.json`, `state.json` and `control.json` in `folder`, which need not exist.
    #[must_use]
    pub fn in_folder(folder: impl AsRef<Path>) -> MockFiles {
        let folder = folder.as_ref();
        MockFiles {
            config: folder.join("config.json"),
            state: folder.join("state.json"),
            control: folder.join("control.json"),
        }
    }

    /// The environment variables that point a process at these files.
    #[must_use]
    pub fn env(&self) -> [(&'static str, &Path); 3] {
        [
            (CONFIG_ENV, self.config.as_path()),
            (STATE_ENV, self.state.as_path()),
            (CONTROL_ENV, self.control.as_path()),
        ]
    }
}

/// Opens `<path>.lock`, with which writers of `path` exclude each other.
pub(crate) fn lock_file(path: &Path) -> Result<File, FileError> {
    let mut name = OsString::from(path);
    name.push(".lock");
    let path = PathBuf::from(name);
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|source| FileError::Write { path, source })
}

/// The file's value; `None` if there is no such file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(FileError::Read { path: path.to_owned(), source }),
    };
    let value =
        serde_json::from_slice(&text).map_err(|source| FileError::Parse { path: path.to_owned(), source })?;
    Ok(Some(value))
}

/// Replaces a file by the value as JSON.
pub(crate) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), FileError> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|source| FileError::Parse { path: path.to_owned(), source })?;
    write_whole(path, &text)
}

/// Writes a temporary file beside `path` and renames it, so that a reader sees the old or the new one as a whole.
pub(crate) fn write_whole(path: &Path, text: &[u8]) -> Result<(), FileError> {
    let mut name = OsString::from(path);
    name.push(format!(".tmp{}", std::process::id()));
    let temporary = PathBuf::from(name);
    std::fs::write(&temporary, text)
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|source| FileError::Write { path: path.to_owned(), source })
}
