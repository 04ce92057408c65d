//! etcd's data as it was: saved, and put back after more was written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::ControlPlane;

const TIMEOUT: Duration = Duration::from_secs(10);

impl ControlPlane {
    /// Copies etcd's data to a folder of this name, while API server and etcd are stopped.
    pub async fn save_etcd(&mut self, name: &str) -> anyhow::Result<PathBuf> {
        let (data, saved) = (self.folder.etcd(), self.dir().join(name));
        self.without_etcd(|| copy(&data, &saved)).await?;
        Ok(saved)
    }

    /// Puts data back that was saved. What was written since is forgotten, and what is written from now on gets
    /// revisions that were given before: watches that go on from one of these miss events, so every watching program
    /// must be restarted.
    pub async fn restore_etcd(&mut self, saved: &Path) -> anyhow::Result<()> {
        let data = self.folder.etcd();
        self.without_etcd(|| {
            std::fs::remove_dir_all(&data)?;
            copy(saved, &data)
        })
        .await
    }

    /// Does this while neither runs. Other programs of the control plane go on.
    async fn without_etcd(&mut self, act: impl FnOnce() -> std::io::Result<()>) -> anyhow::Result<()> {
        // Its watches would keep an API server from ending in order.
        self.child("kube-apiserver")?.kill()?;
        ensure!(self.child("etcd")?.terminate(TIMEOUT)?, "etcd does not end");
        act().context("failed to copy etcd's data")?;
        self.restart("etcd").await?;
        self.restart("kube-apiserver").await
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
