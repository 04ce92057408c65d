//! The folder of CDI specs. kerf replaces its own files as a whole and never touches other files.
//!
//! kerf's files are those named `kerf.dev-GPU-….json` and `kerf.dev-MIG-….json`, whatever they contain.

use super::error::AccessError;
use kerf_core::keys;
use kerf_core::names::DeviceId;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const EXTENSION: &str = ".json";

/// A draft has this suffix, so that no container runtime reads it.
const DRAFT: &str = ".draft";

/// Permissions of a folder that kerf creates, and of a spec.
const FOLDER_MODE: u32 = 0o755;
const SPEC_MODE: u32 = 0o644;

/// Writes a device's spec unless the same one exists.
pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result<(), AccessError> {
    let path = folder.join(format!("{}{name}{EXTENSION}", prefix()));
    if fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(AccessError::file(folder))?;
    replace(folder, &path, text).map_err(AccessError::file(&path))?;
    tracing::info!(file = %path.display(), "CDI spec written");
    Ok(())
}

fn replace(folder: &Path, path: &Path, text: &str) -> io::Result<()> {
    let draft = format!(".{}", prefix());
    let mode = Permissions::from_mode(SPEC_MODE);
    let mut draft =
        tempfile::Builder::new().prefix(&draft).suffix(DRAFT).permissions(mode).tempfile_in(folder)?;
    draft.write_all(text.as_bytes())?;
    draft.as_file().sync_all()?;
    draft.persist(path).map(drop).map_err(|error| error.error)
}

/// Removes kerf's specs of devices that do not stay. Returns those that could not be removed.
pub(super) fn remove_others(
    folder: &Path,
    stays: impl Fn(&DeviceId) -> bool,
) -> BTreeMap<DeviceId, AccessError> {
    let mut left = BTreeMap::new();
    for (name, path) in files(folder) {
        if is_draft(&name) {
            drop(fs::remove_file(&path));
        }
        let Some(device) = device_of(&name).filter(|device| !stays(device)) else { continue };
        match fs::remove_file(&path) {
            Ok(()) => tracing::info!(file = %path.display(), "CDI spec removed"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => drop(left.insert(device, AccessError::file(&path)(error))),
        }
    }
    left
}

/// The names and paths in a folder; none if it does not exist.
fn files(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

/// Whether the file is a draft of an earlier process that was killed.
fn is_draft(name: &str) -> bool {
    name.strip_prefix('.').is_some_and(|name| name.starts_with(&prefix())) && name.ends_with(DRAFT)
}

/// The device whose spec has this file name.
fn device_of(name: &str) -> Option<DeviceId> {
    let device = name.strip_prefix(&prefix())?.strip_suffix(EXTENSION)?;
    (device.starts_with("GPU-") || device.starts_with("MIG-")).then(|| DeviceId::new(device))
}

fn prefix() -> String {
    format!("{}-", keys::GROUP)
}
