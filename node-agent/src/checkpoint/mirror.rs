//! Mirrors the checkpoint in the format of agents without a ledger, so that after a rollback such an agent can continue.
//!
//! When such an agent writes, it drops the field that marks a mirror. So a file without the field is newer than the
//! ledger: an older agent has served the node since.

use super::{CheckpointError, Record, VERSION, failed, from_json, sync, two_files};
use crate::node::Restored;
use kerf_core::contract::GpuNodeSpec;
use kerf_core::ledger::Saved;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file, and its name during a write.
pub(super) const NAMES: [&str; 2] = ["checkpoint.json", "checkpoint.json.new"];

/// The format version that agents without a ledger read.
const OLD_VERSION: u32 = 1;

/// How far the mirror may be behind the ledger while the agent runs. An agent that ends normally brings it up to date.
const INTERVAL: Duration = Duration::from_mins(1);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FormerCheckpoint {
    #[serde(default)]
    spec: GpuNodeSpec,
    #[serde(default)]
    mirrors_ledger: bool,
    #[serde(flatten)]
    rest: Record,
}

/// The file `checkpoint.json` in the checkpoint's folder.
#[derive(Debug)]
pub(super) struct Mirror {
    folder: PathBuf,
    /// Whether the file is the checkpoint of an agent without a ledger, and newer than the ledger.
    is_newer: bool,
    written: Option<Instant>,
    is_behind: bool,
}

/// The checkpoint of an agent without a ledger, if that was the last to serve the node.
pub(super) type Old = Option<Result<Record, String>>;

impl Mirror {
    pub(super) fn open(folder: &Path) -> Result<(Self, Old), CheckpointError> {
        let text = two_files::read(&folder.join(NAMES[0]))?;
        let old =
            text.map(|text| from_json::<FormerCheckpoint>(&text, OLD_VERSION)).and_then(|read| match read {
                Ok(FormerCheckpoint { mirrors_ledger: true, .. }) => None,
                Ok(FormerCheckpoint { spec, rest, .. }) => {
                    let node = Restored { ledger: spec.into(), ..rest.node };
                    Some(Ok(Record { version: VERSION, node, ..rest }))
                }
                Err(error) => Some(Err(error)),
            });
        let mirror =
            Self { folder: folder.to_owned(), is_newer: old.is_some(), written: None, is_behind: true };
        Ok((mirror, old))
    }

    /// Follows the ledger, which has this checkpoint now. If an older agent's checkpoint is there, it must be replaced.
    /// Otherwise a failed write of the mirror does no harm.
    pub(super) fn follow(&mut self, record: &Record) -> Result<(), CheckpointError> {
        self.is_behind = true;
        if self.is_newer {
            return self.write(record);
        }
        if self.written.is_none_or(|at| at.elapsed() >= INTERVAL) {
            self.catch_up(record);
        }
        Ok(())
    }

    /// Brings the mirror up to date. A failure is only logged, because this agent does not need the mirror.
    pub(super) fn catch_up(&mut self, record: &Record) {
        if !self.is_behind {
            return;
        }
        if let Err(error) = self.write(record) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to write the checkpoint for a rollback"
            );
        }
    }

    fn write(&mut self, record: &Record) -> Result<(), CheckpointError> {
        let Saved { desired, epoch } = record.node.ledger.clone();
        let spec = GpuNodeSpec { epoch, ..desired };
        let node = Restored { ledger: Saved::default(), ..record.node.clone() };
        let rest = Record { version: OLD_VERSION, node, ..record.clone() };
        let text = serde_json::to_vec(&FormerCheckpoint { spec, mirrors_ledger: true, rest })?;
        let [path, new] = NAMES.map(|name| self.folder.join(name));
        let mut file = File::create(&new).map_err(failed("make", &new))?;
        file.write_all(&text).and_then(|()| file.sync_data()).map_err(failed("write", &new))?;
        fs::rename(&new, &path).map_err(failed("rename", &new))?;
        sync(&self.folder)?;
        (self.is_newer, self.is_behind, self.written) = (false, false, Some(Instant::now()));
        Ok(())
    }
}
