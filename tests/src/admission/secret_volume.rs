//! A mounted Secret, renewed as the kubelet renews it: all files by the swap of one link, and the old ones gone after it.

use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::kubelet::AtomicFolder;

/// The folder.
#[derive(Debug)]
pub struct SecretVolume {
    folder: AtomicFolder,
    _temporary: TempDir,
}

impl SecretVolume {
    /// A volume of a Secret with these keys and texts.
    pub fn mount(content: &[(&str, &str)]) -> io::Result<Self> {
        let temporary = tempfile::tempdir()?;
        let mut volume = Self { folder: AtomicFolder::make(temporary.path())?, _temporary: temporary };
        volume.renew(content)?;
        Ok(volume)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the Secret these keys and texts.
    pub fn renew(&mut self, content: &[(&str, &str)]) -> io::Result<()> {
        let payload = content.iter().map(|(key, text)| ((*key).to_owned(), text.as_bytes().to_vec()));
        self.folder.show(payload.collect()).map(drop)
    }
}
