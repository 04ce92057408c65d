//! Identifies the load of the driver's kernel module. MIG mode (on Hopper and later), GPU instances and all settings of
//! GPUs end with a load, within one boot as well as at its end.
//!
//! The identity is the inode number of `/sys/module/nvidia`. The kernel makes that folder when the module is loaded and
//! removes it when it is unloaded. sysfs numbers its files in one ascending sequence for a boot (`__kernfs_new_node` in
//! `fs/kernfs/dir.c`: a cyclic counter with a generation above it), so a later folder of the same name has another
//! number. Every mount of sysfs shows the same number, also in a container.
//!
//! Three other sources cannot identify a load. The folder's times are those of its first look-up, and change when the
//! kernel drops the inode from its cache. The driver's version stays the same in a reload. `initstate` and `refcnt` do
//! not differ between loads.

use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The driver module's folder below `/sys`.
const MODULE: &str = "module/nvidia";

/// Identity of a load of the driver. Two values of one boot are equal only if they are the same load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DriverLoad(u64);

impl DriverLoad {
    /// Reads the current load from `sys`, usually `/sys`; `None` while no driver is loaded, and where GPUs are
    /// simulated.
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
        // Rename the folder instead of removing it; otherwise a file system that reuses inode numbers could reuse this
        // one.
        fs::rename(&module, old).unwrap();
        fs::create_dir(&module).unwrap();
        assert_ne!(DriverLoad::read(sys.path()), Some(first));
    }
}
