//! The folder of one control plane: keys, kubeconfigs, logs and etcd's data. It decides whether the folder
//! outlives the test.
//!
//! The folder stays unless the control plane was stopped in order. A failed start, a panic, and a test that
//! returns an error all merely drop it, so their logs are kept.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::Context as _;
use tempfile::TempDir;

/// A temporary folder that is removed only on request, and never if `KERF_KEEP` is set.
#[derive(Debug)]
pub struct Folder {
    directory: TempDir,
    remove: bool,
}

impl Folder {
    /// Creates the folder and its subfolders.
    pub fn new() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("kerf-control-plane-").tempdir();
        let directory = directory.context("failed to create a temporary folder")?;
        let folder = Self { directory, remove: false };
        for subfolder in [folder.pki(), folder.logs(), folder.kubeconfigs(), folder.documents()] {
            fs::create_dir(&subfolder)
                .with_context(|| format!("failed to create {}", subfolder.display()))?;
        }
        Ok(folder)
    }

    /// Drops the folder and removes it.
    pub fn remove(mut self) {
        self.remove = true;
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn pki(&self) -> PathBuf {
        self.path().join("pki")
    }

    /// The folder of the logs, one for each program.
    pub fn logs(&self) -> PathBuf {
        self.path().join("logs")
    }

    /// The folder of the kubeconfigs, one for each user.
    pub fn kubeconfigs(&self) -> PathBuf {
        self.path().join("kubeconfigs")
    }

    /// The folder of etcd's data.
    pub fn etcd(&self) -> PathBuf {
        self.path().join("etcd")
    }

    /// Configuration documents of programs.
    pub fn documents(&self) -> PathBuf {
        self.path().join("documents")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.remove || env::var_os("KERF_KEEP").is_some() {
            self.directory.disable_cleanup(true);
            eprintln!("control plane: its logs and documents are kept in {}", self.path().display());
        }
    }
}
