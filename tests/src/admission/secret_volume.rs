//! A mounted Secret that is updated as the kubelet does it: one link is swapped for all files, then the old
//! files are deleted.

use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::kubelet::AtomicFolder;

#[derive(Debug)]
pub struct SecretVolume {
    folder: AtomicFolder,
    _temporary: TempDir,
}

impl SecretVolume {
    pub fn mount(content: &[(&str, &str)]) -> io::Result<Self> {
        let temporary = tempfile::tempdir()?;
        let mut volume = Self { folder: AtomicFolder::make(temporary.path())?, _temporary: temporary };
        volume.renew(content)?;
        Ok(volume)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn renew(&mut self, content: &[(&str, &str)]) -> io::Result<()> {
        let payload = content.iter().map(|(key, text)| ((*key).to_owned(), text.as_bytes().to_vec()));
        self.folder.show(payload.collect()).map(drop)
    }
}
