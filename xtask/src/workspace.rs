//! Where things are: the checkout's root and cargo's target folder. Reads the environment, changes nothing.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The checkout that xtask was built from, and the target folder it was built into.
#[derive(Debug, Clone)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
    profile: PathBuf,
}

impl Workspace {
    /// The root comes from the build; the target folder from where this executable lies (`<target>/debug/xtask`), so
    /// that `CARGO_TARGET_DIR` and `build.target-dir` are honoured without reading them.
    pub fn locate() -> anyhow::Result<Self> {
        let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().context("xtask lies at the root of its disk")?.to_path_buf();
        let executable = env::current_exe().context("failed to find the path of xtask itself")?;
        let profile = executable.parent().context("xtask does not lie in a folder")?;
        let target = profile.parent().context("xtask does not lie in <target>/<profile>/")?;
        Ok(Self { root, target: target.to_path_buf(), profile: profile.to_path_buf() })
    }

    /// The checkout's root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A program that cargo built with `profile` (`debug` or `release`).
    pub fn built(&self, profile: &str, name: &str) -> PathBuf {
        self.target.join(profile).join(name)
    }

    /// A program that cargo built beside xtask itself.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.profile.join(name)
    }

    /// Where cargo's own extensions are installed for this workspace.
    pub fn cargo_tools(&self) -> PathBuf {
        self.target.join("cargo-tools")
    }

    /// The folder of one wrapper Go module: `tests/tools/<name>`.
    pub fn go_module(&self, name: &str) -> PathBuf {
        self.root.join("tests").join("tools").join(name)
    }

    /// Where built Go programs are kept: `<target>/<store>`.
    pub fn tools(&self, store: &str) -> PathBuf {
        self.target.join(store)
    }

    /// Where `cargo xtask images` writes.
    pub fn images(&self) -> PathBuf {
        self.target.join("images")
    }

    /// Where cargo builds what is not for this machine itself.
    pub fn images_build(&self) -> PathBuf {
        self.target.join("images-build")
    }

    /// Where the sources are copied to whose checks are removed.
    pub fn forging(&self) -> PathBuf {
        self.target.join("forging")
    }

    /// Where the sources are copied to into which bugs are put.
    pub fn planted(&self) -> PathBuf {
        self.target.join("planted")
    }

    /// Where bundles for a machine with a GPU are made.
    pub fn gpu(&self) -> PathBuf {
        self.target.join("gpu")
    }
}
