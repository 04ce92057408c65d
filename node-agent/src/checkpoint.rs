//! The agent's own record, on the node's disk: its ledger, and what it set on GPUs beside slices.
//!
//! GPU instances do not survive a reboot and the API server may be away after one, so what is to be there again is known
//! from here. It is written before each create: a record without a slice is an order, a slice without a record is somebody
//! else's. Of compute modes, memory limits, lengths of time slices and labels that pause DCGM it tells which are the agent's to undo,
//! so these are in it before they are set.

mod mirror;
mod two_files;

use crate::driver_load::DriverLoad;
use crate::node::Recalled;
use kerf_core::names::GpuUuid;
use mirror::{Mirror, Old};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use two_files::{Contents, TwoFiles};

/// The folder on a node.
pub const FOLDER: &str = "/var/lib/kerf";

/// Where Linux tells the boot's id, another one after each reboot.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The record's version. One of another version is set aside.
pub const VERSION: u32 = 2;

const LOCK_NAME: &str = "lock";

/// What the agent must not forget.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// The boot in which it was written.
    pub boot_id: String,
    /// The load of the driver in which it was written. Older agents recorded none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_load: Option<DriverLoad>,
    /// GPUs whose MIG mode a load of the driver took, and has not come back yet. Older agents had them in `mig` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_lost: Option<BTreeSet<GpuUuid>>,
    /// What is known of the node.
    #[serde(flatten)]
    pub node: Recalled,
}

impl Record {
    /// What is known of the node in a boot.
    #[must_use]
    pub fn new(boot_id: String, mut node: Recalled) -> Self {
        let mig_lost = Some(std::mem::take(&mut node.mig_lost));
        Self { version: VERSION, boot_id, driver_load: None, mig_lost, node }
    }
}

/// Why there is no checkpoint, or why it was not written.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The disk refused.
    #[error("failed to {step} {}", path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another process holds the folder.
    #[error(
        "{} is in use: an agent serves this node, or another leaves it. A node is left once it is its agent's no more; a Job of an \
         uninstall that an installation followed may be deleted", .0.display()
    )]
    InUse(PathBuf),
    /// The record cannot be written as JSON.
    #[error("failed to write the checkpoint as JSON")]
    Json(#[from] serde_json::Error),
}

/// Files that were moved out of the way because they could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Where they are now.
    pub paths: Vec<PathBuf>,
    /// Why they could not be read.
    pub reason: String,
}

impl fmt::Display for SetAside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let (paths, reason) = (paths.join(" and "), &self.reason);
        write!(
            f,
            "the agent's record cannot be read ({reason}) and was kept as {paths}; slices that are on the GPUs \
             stay, and those of the node's pods come back by what these were assigned"
        )
    }
}

/// What an earlier process left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing: no agent was here.
    Nothing,
    /// Its record.
    Record(Box<Record>),
    /// One of another version, or files that have none.
    Unreadable(SetAside),
}

impl Found {
    /// The record, if one was there that can be read.
    #[must_use]
    pub fn record(self) -> Option<Record> {
        if let Self::Record(record) = self { Some(*record) } else { None }
    }
}

/// The record's files, which one agent at a time holds.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    files: TwoFiles,
    mirror: Mirror,
    /// What is on the disk, if that is known.
    saved: Option<Record>,
    /// Held as long as the checkpoint is open; the kernel lets go of it when the process ends, however it ends.
    _lock: File,
}

impl Checkpoint {
    /// Opens the checkpoint in `folder`, which is made if it is not there, and gives what was there. A file that the disk does not
    /// give is an error: nobody knows what it says.
    pub fn open(folder: &Path) -> Result<(Self, Found), CheckpointError> {
        fs::create_dir_all(folder).map_err(failed("make", folder))?;
        let lock = lock(folder)?;
        let (mut files, contents) = TwoFiles::open(folder)?;
        let (mut mirror, old) = Mirror::open(folder)?;
        let (is_newest, mut saved) = (old.is_none(), None);
        let found = match parse(old, contents) {
            Ok(None) => Found::Nothing,
            Ok(Some(record)) => {
                saved = Some(record.clone()).filter(|_| is_newest);
                Found::Record(Box::new(record))
            }
            Err(reason) => {
                let set_aside = set_aside(folder, reason)?;
                tracing::error!(reason = set_aside.reason, "{set_aside}");
                (files, _) = TwoFiles::open(folder)?;
                (mirror, _) = Mirror::open(folder)?;
                Found::Unreadable(set_aside)
            }
        };
        Ok((Self { folder: folder.to_owned(), files, mirror, saved, _lock: lock }, found))
    }

    /// Writes the record, unless it is on the disk already. It is there for good when this returns; after an error the one
    /// before is still there, or this one.
    pub fn save(&mut self, record: &Record) -> Result<(), CheckpointError> {
        if self.saved.as_ref() == Some(record) {
            return Ok(());
        }
        self.saved = None;
        self.files.write(&serde_json::to_vec(record)?)?;
        self.mirror.follow(record)?;
        self.saved = Some(record.clone());
        Ok(())
    }

    /// Leaves the record to the next process, which may be an agent without a ledger.
    pub fn leave(&mut self) {
        if let Some(record) = &self.saved {
            self.mirror.catch_up(record);
        }
    }

    /// Removes the record, for an agent that leaves for good. What was set aside stays.
    pub fn remove(self) -> Result<(), CheckpointError> {
        for name in names() {
            self.remove_file(name)?;
        }
        sync(&self.folder)
    }

    fn remove_file(&self, name: &str) -> Result<(), CheckpointError> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// How many records were written; each has cost one `fdatasync`.
    #[cfg(test)]
    pub(crate) fn writes(&self) -> u64 {
        self.files.sequence()
    }
}

/// All files that may have a record.
fn names() -> impl Iterator<Item = &'static str> {
    mirror::NAMES.into_iter().chain(two_files::NAMES)
}

/// The id of this boot, from `path`, for most [`BOOT_ID`].
pub fn boot_id(path: &Path) -> Result<String, CheckpointError> {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(failed("read", path))
}

fn lock(folder: &Path) -> Result<File, CheckpointError> {
    let path = folder.join(LOCK_NAME);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(CheckpointError::InUse(folder.to_owned())),
        Err(TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
    }
}

/// The record, or why there is one that cannot be read.
fn parse(old: Old, contents: Contents) -> Result<Option<Record>, String> {
    match (old, contents) {
        (Some(old), _) => old.map(Some),
        (None, Contents::Document(text)) => from_json(&text, VERSION).map(Some),
        (None, Contents::Torn) => Err("no file is whole".to_owned()),
        (None, Contents::Nothing) => Ok(None),
    }
}

fn from_json<T: DeserializeOwned>(text: &[u8], readable: u32) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != readable {
        return Err(format!("it is of version {version}, and this agent reads version {readable}"));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Moves the files to names with the first number that is free for all of them.
fn set_aside(folder: &Path, reason: String) -> Result<SetAside, CheckpointError> {
    let aside = |name: &str, number: u32| folder.join(format!("{name}.unreadable-{number}"));
    let mut number = 1;
    while names().any(|name| aside(name, number).exists()) {
        number += 1;
    }
    let mut paths = Vec::new();
    for name in names() {
        let (path, to) = (folder.join(name), aside(name, number));
        match fs::rename(&path, &to) {
            Ok(()) => paths.push(to),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("move aside", &path)(error)),
        }
    }
    sync(folder)?;
    Ok(SetAside { paths, reason })
}

/// Makes what was renamed or removed in a folder last over a power cut.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("write", folder))
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError + use<> {
    let path = path.to_owned();
    move |source| CheckpointError::Io { step, path, source }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
pub(crate) mod tests;
