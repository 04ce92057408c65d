//! The agent's checkpoint on the node's disk: its ledger, and what it set on GPUs besides slices.
//!
//! GPU instances do not survive a reboot, and the API server may be unreachable after one, so the agent restores the
//! node from this file. It is written before each create: a recorded slice without an instance is an order, and an
//! instance that the checkpoint does not list is foreign. It also lists the compute modes, memory limits, lengths of time
//! slices and labels that pause DCGM that the agent must undo, so these are recorded before they are set.

mod mirror;
mod two_files;

use crate::driver_load::DriverLoad;
use crate::node::Restored;
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

/// The file with the boot's id, which changes with each reboot.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The checkpoint's format version. A file with another version is set aside.
pub const VERSION: u32 = 2;

const LOCK_NAME: &str = "lock";

/// What the agent must remember over restarts and reboots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The format version, which is [`VERSION`] when this program writes.
    pub version: u32,
    /// The id of the boot in which it was written.
    pub boot_id: String,
    /// The load of the driver in which it was written. `None` in checkpoints of older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_load: Option<DriverLoad>,
    /// GPUs that lost their MIG mode to a load of the driver and do not have it back yet. Older agents kept them in
    /// `mig` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_lost: Option<BTreeSet<GpuUuid>>,
    #[serde(flatten)]
    pub node: Restored,
}

impl Record {
    #[must_use]
    pub fn new(boot_id: String, mut node: Restored) -> Self {
        let mig_lost = Some(std::mem::take(&mut node.mig_lost));
        Self { version: VERSION, boot_id, driver_load: None, mig_lost, node }
    }
}

#[derive(Debug, Error)]
pub enum CheckpointError {
    #[error("failed to {step} {}", path.display())]
    Io {
        /// The operation, as a verb for the error's text.
        step: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "{} is in use: an agent serves this node, or a Job releases it. Wait until that has ended; a Job of an uninstall before \
         this installation may be deleted", .0.display()
    )]
    InUse(PathBuf),
    #[error("failed to write the checkpoint as JSON")]
    Json(#[from] serde_json::Error),
}

/// Unreadable files that were renamed, so that a new checkpoint can be written and an admin can inspect the old one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    pub paths: Vec<PathBuf>,
    pub reason: String,
}

impl fmt::Display for SetAside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let (paths, reason) = (paths.join(" and "), &self.reason);
        write!(
            f,
            "the agent's checkpoint cannot be read ({reason}) and was renamed to {paths}; slices that are on the GPUs \
             stay, and those of the node's pods come back by what these were assigned"
        )
    }
}

/// What an earlier process left in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No checkpoint: no agent was here.
    Nothing,
    Record(Box<Record>),
    /// A checkpoint of another version, or files that cannot be parsed.
    Unreadable(SetAside),
}

impl Found {
    #[must_use]
    pub fn record(self) -> Option<Record> {
        if let Self::Record(record) = self { Some(*record) } else { None }
    }
}

/// The checkpoint's files, which one process at a time holds open.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    files: TwoFiles,
    mirror: Mirror,
    /// The checkpoint on the disk; `None` if a failed write left it unknown.
    saved: Option<Record>,
    /// Held while the checkpoint is open. The kernel releases the lock when the process ends, even by a crash.
    _lock: File,
}

impl Checkpoint {
    /// Opens the checkpoint in `folder` and returns its content; creates the folder if needed. A file that the disk
    /// fails to read is an error, because its content is unknown and must not count as absent.
    pub fn open(folder: &Path) -> Result<(Self, Found), CheckpointError> {
        fs::create_dir_all(folder).map_err(failed("make", folder))?;
        // Lock before the files are read, so that no other process writes them in between.
        let lock = lock(folder)?;
        let (mut files, contents) = TwoFiles::open(folder)?;
        let (mut mirror, old) = Mirror::open(folder)?;
        let (is_newest, mut saved) = (old.is_none(), None);
        let found = match parse(old, contents) {
            Ok(None) => Found::Nothing,
            Ok(Some(record)) => {
                // An older agent's checkpoint counts as unsaved, so that the ledger's own files get it.
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

    /// Writes the checkpoint unless the disk has it already. It is durable when this returns; after an error the
    /// disk has either the previous checkpoint or this one.
    pub fn save(&mut self, record: &Record) -> Result<(), CheckpointError> {
        if self.saved.as_ref() == Some(record) {
            return Ok(());
        }
        // While the write runs the disk's content is unknown; it stays so if the write fails.
        self.saved = None;
        self.files.write(&serde_json::to_vec(record)?)?;
        self.mirror.follow(record)?;
        self.saved = Some(record.clone());
        Ok(())
    }

    /// Prepares the files for the next process, which may be an older agent without a ledger.
    pub fn leave(&mut self) {
        if let Some(record) = &self.saved {
            self.mirror.catch_up(record);
        }
    }

    /// Removes the checkpoint when the agent leaves for good. Files that were set aside stay.
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

    /// How many records were written; each costs one `fdatasync`.
    #[cfg(test)]
    pub(crate) fn writes(&self) -> u64 {
        self.files.sequence()
    }
}

/// Names of all files that may hold a checkpoint.
fn names() -> impl Iterator<Item = &'static str> {
    mirror::NAMES.into_iter().chain(two_files::NAMES)
}

/// Reads the id of this boot from `path`, usually [`BOOT_ID`].
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

/// Returns the checkpoint, or the reason why an existing one cannot be read.
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
    // Read the version alone first, because a file of another version may have other fields.
    let Version { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != readable {
        return Err(format!("it is of version {version}, and this agent reads version {readable}"));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Renames the files, with the first number that is free for all of them.
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

/// Makes renames and removals in a folder durable over a power cut.
fn sync(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("write", folder))
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CheckpointError + use<> {
    let path = path.to_owned();
    move |source| CheckpointError::Io { step, path, source }
}

#[cfg(test)]
pub(crate) mod tests;
