//! A mounted Secret, renewed as the kubelet renews it: all files by the swap of one link, and the old ones gone after it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The link that is swapped.
const CURRENT: &str = "..data";

/// The folder.
#[derive(Debug)]
pub struct SecretVolume {
    folder: TempDir,
    generation: u32,
}

impl SecretVolume {
    /// A volume of a Secret with these keys and texts.
    pub fn mount(content: &[(&str, &str)]) -> std::io::Result<Self> {
        let mut volume = Self { folder: tempfile::tempdir()?, generation: 0 };
        volume.renew(content)?;
        for (key, _) in content {
            symlink(Path::new(CURRENT).join(key), volume.path().join(key))?;
        }
        Ok(volume)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the Secret's keys other texts.
    pub fn renew(&mut self, content: &[(&str, &str)]) -> std::io::Result<()> {
        let old = self.of_generation();
        self.generation += 1;
        let new = self.of_generation();
        fs::create_dir(&new)?;
        for (key, text) in content {
            fs::write(new.join(key), text)?;
        }
        let link = self.path().join("..data_tmp");
        symlink(new.strip_prefix(self.path()).unwrap_or(&new), &link)?;
        fs::rename(&link, self.path().join(CURRENT))?;
        if old.exists() { fs::remove_dir_all(old) } else { Ok(()) }
    }

    fn of_generation(&self) -> PathBuf {
        self.path().join(format!("..{}", self.generation))
    }
}
