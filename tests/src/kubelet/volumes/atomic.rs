//! A folder whose files change all at once, by the swap of one link (kubernetes v1.36,
//! `pkg/volume/util/atomic_writer.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The link that is swapped.
const CURRENT: &str = "..data";

/// File contents by their paths below the folder.
pub type Payload = BTreeMap<String, Vec<u8>>;

#[derive(Debug)]
pub struct AtomicFolder {
    path: PathBuf,
    generation: u32,
    shown: Option<Payload>,
}

impl AtomicFolder {
    pub fn make(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        Ok(Self { path, generation: 0, shown: None })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the folder's content. Returns whether it changed.
    pub fn show(&mut self, payload: Payload) -> io::Result<bool> {
        if self.shown.as_ref() == Some(&payload) {
            return Ok(false);
        }
        let old = self.of_generation();
        self.generation += 1;
        let new = self.of_generation();
        fs::create_dir(&new)?;
        for (name, content) in &payload {
            let file = new.join(name);
            fs::create_dir_all(file.parent().unwrap_or(&new))?;
            fs::write(file, content)?;
        }
        let link = self.path.join("..data_tmp");
        symlink(new.strip_prefix(&self.path).unwrap_or(&new), &link)?;
        // Renaming one link over another is atomic, so readers see either the old files or the new ones.
        fs::rename(&link, self.path.join(CURRENT))?;
        self.link(&payload)?;
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
        self.shown = Some(payload);
        Ok(true)
    }

    /// Adds links for new files, and removes those of deleted ones.
    fn link(&self, payload: &Payload) -> io::Result<()> {
        let before = self.shown.as_ref().map(tops).unwrap_or_default();
        let now = tops(payload);
        for name in now.difference(&before) {
            symlink(Path::new(CURRENT).join(name), self.path.join(name))?;
        }
        for name in before.difference(&now) {
            fs::remove_file(self.path.join(name))?;
        }
        Ok(())
    }

    fn of_generation(&self) -> PathBuf {
        self.path.join(format!("..{}", self.generation))
    }
}

/// The first components of the paths.
fn tops(payload: &Payload) -> BTreeSet<&str> {
    payload.keys().filter_map(|path| path.split('/').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    }

    fn visible(folder: &Path) -> Vec<String> {
        let entries =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = entries.filter(|name| !name.starts_with("..")).collect();
        names.sort();
        names
    }

    #[test]
    fn a_reader_of_the_swapped_link_sees_one_generation_whole() {
        let root = tempfile::tempdir().unwrap();
        let mut folder = AtomicFolder::make(root.path().join("volume")).unwrap();
        assert!(folder.show(payload(&[("crt", "1"), ("key", "1")])).unwrap());
        let first = fs::read_link(folder.path().join(CURRENT)).unwrap();
        assert!(!folder.show(payload(&[("crt", "1"), ("key", "1")])).unwrap(), "nothing has changed");
        assert_eq!(fs::read_link(folder.path().join(CURRENT)).unwrap(), first);
        assert!(folder.show(payload(&[("crt", "2"), ("sub/more", "2")])).unwrap());
        assert_eq!(visible(folder.path()), ["crt", "sub"]);
        assert_eq!(fs::read_to_string(folder.path().join("crt")).unwrap(), "2");
        assert_eq!(fs::read_to_string(folder.path().join("sub/more")).unwrap(), "2");
        assert!(!folder.path().join(first).exists(), "the old generation goes");
    }
}
