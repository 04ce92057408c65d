//! The mock's files: their names, the environment that carries them, reading and writing JSON whole.
//!
//! Locking and caching are store.rs's.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Names the configuration file; needed while there is no state file.
pub const CONFIG_ENV: &str = "KERF_NVML_MOCK_CONFIG";
/// Names the state file; without it the mock answers as a machine without a driver.
pub const STATE_ENV: &str = "KERF_NVML_MOCK_STATE";
/// Names the control file, which may be absent, appear and change at any time.
pub const CONTROL_ENV: &str = "KERF_NVML_MOCK_CONTROL";
/// Names a folder that stands in for `/proc`, in which the kernel module's files are kept true; optional.
pub const PROC_ENV: &str = "KERF_NVML_MOCK_PROC";

/// Why a file of the mock could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file could not be written or put in place.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not the JSON that belongs there.
    #[error("{path} is not valid: {source}; see the README of nvml-mock for the format")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: serde_json::Error,
    },
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(#[from] crate::config::ConfigError),
}

/// The three files of one simulated node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MockFiles {
    /// The configuration.
    pub config: PathBuf,
    /// The state; its lock lies beside it as `<state>.lock`.
    pub state: PathBuf,
    /// The control file.
    pub control: PathBuf,
}

impl MockFiles {
    /// `config.json`, `state.json` and `control.json` in `folder`, none of which need exist.
    #[must_use]
    pub fn in_folder(folder: impl AsRef<Path>) -> MockFiles {
        let folder = folder.as_ref();
        MockFiles {
            config: folder.join("config.json"),
            state: folder.join("state.json"),
            control: folder.join("control.json"),
        }
    }

    /// The environment that points a process at these files.
    #[must_use]
    pub fn env(&self) -> [(&'static str, &Path); 3] {
        [
            (CONFIG_ENV, self.config.as_path()),
            (STATE_ENV, self.state.as_path()),
            (CONTROL_ENV, self.control.as_path()),
        ]
    }
}

/// Opens `<path>.lock`, on which those who change `path` lock each other out.
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

/// The file's value; `None` when there is no such file.
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

/// Writes a temporary file beside `path` and renames it, so that a reader sees the old or the new one, whole.
pub(crate) fn write_whole(path: &Path, text: &[u8]) -> Result<(), FileError> {
    let mut name = OsString::from(path);
    name.push(format!(".tmp{}", std::process::id()));
    let temporary = PathBuf::from(name);
    std::fs::write(&temporary, text)
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|source| FileError::Write { path: path.to_owned(), source })
}
