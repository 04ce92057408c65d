//! Finds NVML among the driver's other files, so that the agent's container needs no driver of its own. The library
//! needs only glibc's own libraries.

use super::driver::LIBRARY_FOLDERS;
use super::rooted::{outside, resolve};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub struct Library {
    given: OsString,
    root: PathBuf,
}

impl Library {
    /// `given` is a path, or a name that is searched in the driver installed under `root`.
    #[must_use]
    pub fn new(given: &OsStr, root: &Path) -> Self {
        Self { given: given.to_owned(), root: root.to_owned() }
    }

    /// Returns what to open now. A driver may be installed or replaced while the agent runs, so the folders are
    /// searched on each call. A name that they do not have is left to the loader.
    #[must_use]
    pub fn find(&self) -> OsString {
        if Path::new(&self.given).components().count() > 1 {
            return self.given.clone();
        }
        let mut paths = LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join(&self.given));
        let found = paths.find_map(|path| resolve(&self.root, &path));
        found.map_or_else(|| self.given.clone(), |real| outside(&self.root, &real).into_os_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_name_is_searched_in_the_drivers_root_and_a_path_is_used_unchanged() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib/x86_64-linux-gnu");
        let find = |given: &str| Library::new(given.as_ref(), root.path()).find();
        assert_eq!(find("libnvidia-ml.so.1"), "libnvidia-ml.so.1", "the driver is not there yet");
        fs::create_dir_all(&folder).unwrap();
        for version in ["570.1", "580.2"] {
            let real = folder.join(format!("libnvidia-ml.so.{version}"));
            fs::write(&real, "").unwrap();
            drop(fs::remove_file(folder.join("libnvidia-ml.so.1")));
            // An absolute link must stay inside the root.
            let inside = format!("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}");
            symlink(inside, folder.join("libnvidia-ml.so.1")).unwrap();
            assert_eq!(find("libnvidia-ml.so.1"), real.as_os_str());
        }
        assert_eq!(find("/mock/libnvidia-ml.so.1"), "/mock/libnvidia-ml.so.1");
        assert_eq!(find("./libnvidia-ml.so.1"), "./libnvidia-ml.so.1");
    }
}
