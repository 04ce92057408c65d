//! The agent's own record, on the node's disk: the spec that it accepted, and what it set on GPUs beside slices.
//!
//! GPU instances do not survive a reboot and the API server may be away after one, so what is to be there again is known
//! from here. It is written before each create: a record without a slice is an order, a slice without a record is somebody
//! else's. Of compute modes, memory limits, lengths of time slices and labels that pause DCGM it tells which are the agent's to undo,
//! so these are in it before they are set.

use crate::driver_load::DriverLoad;
use crate::node::{Ill, Shares};
use kerf_core::contract::GpuNodeSpec;
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The folder on a node.
pub const FOLDER: &str = "/var/lib/kerf";

/// Where Linux tells the boot's id, another one after each reboot.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The record's version. One of another version is set aside.
pub const VERSION: u32 = 1;

const NAME: &str = "checkpoint.json";
const NEW_NAME: &str = "checkpoint.json.new";
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
    /// The UID of the GpuNode whose spec it is: one that was made anew is another.
    #[serde(default)]
    pub uid: Option<String>,
    /// The accepted spec.
    #[serde(default)]
    pub spec: GpuNodeSpec,
    /// The shares that existed, wanted or not: nobody else tells of one that only an init container holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// GPUs whose MIG mode was on when they were seen last: most forget it in a reboot.
    #[serde(default)]
    pub mig: BTreeSet<GpuUuid>,
    /// GPUs whose MIG mode a reboot took, and has not come back yet. Older agents had them in `mig` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_lost: Option<BTreeSet<GpuUuid>>,
    /// GPUs that the agent set to `EXCLUSIVE_PROCESS`.
    #[serde(default)]
    pub exclusive: BTreeSet<GpuUuid>,
    /// Memory limits that the agent set: by GPU and by the pod's cgroup, as a path from the hierarchy's root.
    #[serde(default)]
    pub limits: BTreeMap<GpuUuid, BTreeMap<String, MemoryMib>>,
    /// GPUs whose time slices the agent gave another length than the driver's own since the boot.
    #[serde(default)]
    pub lengths: BTreeSet<GpuUuid>,
    /// Labels of the Node by which the agent has paused GPU Operator's DCGM and its like, and which were `true` before.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub paused: BTreeSet<String>,
    /// GPUs and GPU instances that have reported errors, and have not been seen to be well since.
    #[serde(default)]
    pub ills: Vec<Ill>,
    /// Whether not all of it has been made anew since the boot.
    #[serde(default)]
    pub recovering: bool,
}

impl Record {
    /// A record of nothing yet.
    #[must_use]
    pub fn new(boot_id: String) -> Self {
        Self {
            version: VERSION,
            boot_id,
            driver_load: None,
            uid: None,
            spec: GpuNodeSpec::default(),
            shares: None,
            mig: BTreeSet::new(),
            mig_lost: None,
            exclusive: BTreeSet::new(),
            limits: BTreeMap::new(),
            lengths: BTreeSet::new(),
            paused: BTreeSet::new(),
            ills: Vec::new(),
            recovering: false,
        }
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

/// A file that was moved out of the way because it could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Where it is now.
    pub path: PathBuf,
    /// Why it could not be read.
    pub reason: String,
}

impl fmt::Display for SetAside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, reason) = (self.path.display(), &self.reason);
        write!(
            f,
            "the agent's checkpoint cannot be read ({reason}) and was kept as {path}; slices that are on the GPUs \
             stay, those of before a reboot come back by GpuNode.spec, and MIG modes by GpuNode.status"
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
    /// A file of another version, or one that is no record at all.
    Unreadable(SetAside),
}

impl Found {
    /// The record, if one was there that can be read.
    #[must_use]
    pub fn record(self) -> Option<Record> {
        if let Self::Record(record) = self { Some(*record) } else { None }
    }
}

/// The file, which one agent at a time holds.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
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
        let mut checkpoint = Self { folder: folder.to_owned(), saved: None, _lock: lock };
        let path = folder.join(NAME);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((checkpoint, Found::Nothing)),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let found = match parse(&text) {
            Ok(record) => {
                checkpoint.saved = Some(record.clone());
                Found::Record(Box::new(record))
            }
            Err(reason) => {
                let set_aside = set_aside(folder, reason)?;
                tracing::error!(path = %set_aside.path.display(), reason = set_aside.reason, "{set_aside}");
                Found::Unreadable(set_aside)
            }
        };
        Ok((checkpoint, found))
    }

    /// Writes the record, unless it is on the disk already. It is there for good when this returns; after an error the one
    /// before is still there, or this one.
    pub fn save(&mut self, record: &Record) -> Result<(), CheckpointError> {
        if self.saved.as_ref() == Some(record) {
            return Ok(());
        }
        self.saved = None;
        let text = serde_json::to_vec(record)?;
        let (path, new) = (self.folder.join(NAME), self.folder.join(NEW_NAME));
        if let Err(error) = write(&new, &text) {
            // What a full disk took of it is given back.
            drop(fs::remove_file(&new));
            return Err(failed("write", &new)(error));
        }
        fs::rename(&new, &path).map_err(failed("replace", &path))?;
        sync(&self.folder)?;
        self.saved = Some(record.clone());
        Ok(())
    }

    /// Removes the record, for an agent that leaves for good. What was set aside stays.
    pub fn remove(mut self) -> Result<(), CheckpointError> {
        self.saved = None;
        let path = self.folder.join(NAME);
        match fs::remove_file(&path) {
            Ok(()) => sync(&self.folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("remove", &path)(error)),
        }
    }
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

fn parse(text: &[u8]) -> Result<Record, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it is of version {version}, and this agent reads version {VERSION}"));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// Moves the checkpoint to the first free name.
fn set_aside(folder: &Path, reason: String) -> Result<SetAside, CheckpointError> {
    let path = folder.join(NAME);
    let mut number = 1_u32;
    let free = loop {
        let candidate = folder.join(format!("{NAME}.unreadable-{number}"));
        if !candidate.try_exists().map_err(failed("look for", &candidate))? {
            break candidate;
        }
        number += 1;
    };
    fs::rename(&path, &free).map_err(failed("move aside", &path))?;
    sync(folder)?;
    Ok(SetAside { path: free, reason })
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text)?;
    file.sync_all()
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
mod tests;
