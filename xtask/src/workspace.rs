//! The paths of a workspace: the checkout's root and cargo's target folder. It reads the environment and changes
//! nothing.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

#[derive(Debug, Clone)]
pub struct Workspace {
    root: PathBuf,
    target: PathBuf,
    profile: PathBuf,
}

impl Workspace {
    /// The root is known from the build. The target folder is found by this executable's path (`<target>/debug/xtask`),
    /// so that `CARGO_TARGET_DIR` and `build.target-dir` count without being read.
    pub fn locate() -> anyhow::Result<Self> {
        let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.parent().context("xtask lies at the root of its disk")?.to_path_buf();
        let executable = env::current_exe().context("failed to find the path of xtask itself")?;
        let profile = executable.parent().context("xtask does not lie in a folder")?;
        let target = profile.parent().context("xtask does not lie in <target>/<profile>/")?;
        Ok(Self { root, target: target.to_path_buf(), profile: profile.to_path_buf() })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn built(&self, profile: &str, name: &str) -> PathBuf {
        self.target.join(profile).join(name)
    }

    pub fn beside(&self, name: &str) -> PathBuf {
        self.profile.join(name)
    }

    pub fn cargo_tools(&self) -> PathBuf {
        self.target.join("cargo-tools")
    }

    pub fn go_module(&self, name: &str) -> PathBuf {
        self.root.join("tests").join("tools").join(name)
    }

    pub fn tools(&self, store: &str) -> PathBuf {
        self.target.join(store)
    }

    pub fn images(&self) -> PathBuf {
        self.target.join("images")
    }

    pub fn images_build(&self) -> PathBuf {
        self.target.join("images-build")
    }

    pub fn forging(&self) -> PathBuf {
        self.target.join("forging")
    }

    pub fn planted(&self) -> PathBuf {
        self.target.join("planted")
    }

    /// The folder for a copy of the sources in which decisions are changed.
    pub fn mutants(&self) -> PathBuf {
        self.target.join("mutants")
    }

    pub fn gpu(&self) -> PathBuf {
        self.target.join("gpu")
    }
}
