//! The kubelet's checkpoint file: who holds what, and what the plugins answered. Our own JSON, under the real name.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::grant::Grant;
use super::ledger::LedgerCheckpoint;

/// Name of the real kubelet's file in the device plugin folder.
const FILE: &str = "kubelet_internal_checkpoint";

/// What a kubelet finds again after its restart.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// Names and holdings.
    pub(super) ledger: LedgerCheckpoint,
    /// Answers of `Allocate` by pod UID and container.
    pub(super) grants: BTreeMap<String, BTreeMap<String, Grant>>,
}

impl Checkpoint {
    /// Reads it; None if there is none that can be read, which the kubelet takes for a first start.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path(folder)).ok()?).ok()
    }

    /// Writes it whole or not at all.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let draft = folder.join(".checkpoint");
        std::fs::write(&draft, serde_json::to_vec(self)?)?;
        std::fs::rename(draft, path(folder))
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}
