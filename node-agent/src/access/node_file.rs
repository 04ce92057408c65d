//! Checks the file of a character device, and creates the right one.

use super::error::AccessError;
use rustix::fs::{CWD, FileType, Mode, major, makedev, minor, mknodat};
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

const PERMISSIONS: u32 = 0o7777;

/// Permissions of the folder with the capabilities' files, as nvidia-modprobe creates it.
const FOLDER: u32 = 0o755;

/// The major and minor number of a character device; `None` for other files.
pub(super) fn number(metadata: &Metadata) -> Option<(u32, u32)> {
    let is_character = metadata.file_type().is_char_device();
    is_character.then(|| (major(metadata.rdev()), minor(metadata.rdev())))
}

/// Makes sure that the character device `wanted` is at `path` with these permissions. Another file there is replaced,
/// unless the driver leaves device files to the administrator (`may_make`).
pub(super) fn ensure(path: &Path, wanted: (u32, u32), mode: u32, may_make: bool) -> Result<(), AccessError> {
    let there = match fs::symlink_metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(AccessError::file(path)(error)),
    };
    let right = there.filter(|metadata| number(metadata) == Some(wanted));
    // If the driver leaves device files to the administrator, their permissions are the administrator's choice, too.
    match right {
        Some(metadata) if metadata.mode() & PERMISSIONS == mode || !may_make => Ok(()),
        Some(_) => {
            tracing::info!(file = %path.display(), mode = format!("{mode:o}"), "permissions of a device file mended");
            permit(path, mode).map_err(AccessError::file(path))
        }
        None if !may_make => {
            let (major, minor) = wanted;
            Err(AccessError::ForAdministrator { path: path.to_owned(), major, minor, mode })
        }
        None => make(path, wanted, mode).map_err(AccessError::file(path)),
    }
}

fn permit(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Creates the file under another name first, so that no process opens one that is not ready.
fn make(path: &Path, (major, minor): (u32, u32), mode: u32) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    DirBuilder::new().recursive(true).mode(FOLDER).create(folder)?;
    let draft = folder.join(format!(".kerf-{}", name.to_string_lossy()));
    // Remove a draft that an earlier process left, because mknod does not replace a file.
    drop(fs::remove_file(&draft));
    mknodat(CWD, &draft, FileType::CharacterDevice, Mode::from_raw_mode(mode), makedev(major, minor))?;
    // The umask has removed bits of the mode, so set it again.
    permit(&draft, mode)
        .and_then(|()| fs::rename(&draft, path))
        .inspect_err(|_| drop(fs::remove_file(&draft)))?;
    tracing::info!(file = %path.display(), major, minor, "device file made");
    Ok(())
}
