//! Which load of the driver's kernel module runs: MIG mode (on Hopper and later), GPU instances and all that was set on GPUs end
//! with it, within one boot as at its end.
//!
//! The identity is the inode number of `/sys/module/nvidia`. The kernel makes that folder when the module is loaded and removes it
//! when it is unloaded. sysfs numbers its files in one ascending sequence for a boot (`__kernfs_new_node` in `fs/kernfs/dir.c`: a
//! cyclic counter with a generation above it), so a later folder of the same name has another number. Every mount of sysfs shows
//! the same one, also in a container.
//!
//! Not compared are the folder's times, which are those of its first look-up and change when the kernel drops the inode from its
//! cache; the driver's version, which stays the same in a reload; and `initstate` and `refcnt`, which tell no loads apart.

use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The module's folder below `/sys`.
const MODULE: &str = "module/nvidia";

/// A load of the driver. Two of one boot are equal only if they are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DriverLoad(u64);

impl DriverLoad {
    /// The load that runs, by `sys`, for most `/sys`; `None` while no driver is loaded, and where GPUs are simulated.
    #[must_use]
    pub fn read(sys: &Path) -> Option<Self> {
        fs::metadata(sys.join(MODULE)).ok().map(|folder| Self(folder.ino()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_is_loaded_again_is_another_load() {
        let sys = tempfile::tempdir().unwrap();
        let (module, old) = (sys.path().join(MODULE), sys.path().join("old"));
        assert_eq!(DriverLoad::read(sys.path()), None);
        fs::create_dir_all(&module).unwrap();
        let first = DriverLoad::read(sys.path()).unwrap();
        fs::write(module.join("initstate"), "live\n").unwrap();
        assert_eq!(DriverLoad::read(sys.path()), Some(first), "its times changed, and it is the same load");
        // The folder stays elsewhere, so that a file system that reuses inode numbers does not reuse this one.
        fs::rename(&module, old).unwrap();
        fs::create_dir(&module).unwrap();
        assert_ne!(DriverLoad::read(sys.path()), Some(first));
    }
}
