//! `cargo xtask tools`: builds Go programs once from pinned modules: those of the local control plane, an admin's
//! tools, NVIDIA's own programs, and those of a node for `cargo xtask gpu pack`.
//!
//! It determines what is missing and builds that. `<target>/<store>/<key>/` has one set. The file
//! `<target>/<store>/current` names the set in use, and `kerf_tests::binaries` reads nothing else, so that only this
//! module computes the key. It must not change go.mod or go.sum, nor print where modules come from.

mod assets;
mod batch;
mod catalog;
mod cgo;
mod files;
mod go;
mod key;
mod redact;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use self::assets::Assets;
use self::batch::Batch;
pub use self::catalog::KUBERNETES_VERSION;
use self::catalog::{ADMIN, CONTROL_PLANE, MONITORING, NODE, NVIDIA, Program, Set};
use crate::build::{Lane, Progress};
use crate::workspace::Workspace;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Demo,
    /// All tests, which also read files of Go modules.
    Tests,
    Node,
}

impl Purpose {
    fn sets(self) -> &'static [&'static Set] {
        match self {
            Self::Demo => &[&CONTROL_PLANE],
            Self::Tests => &[&CONTROL_PLANE, &ADMIN, &NVIDIA, &MONITORING],
            Self::Node => &[&CONTROL_PLANE, &NODE, &ADMIN],
        }
    }

    /// Whether the program must be built although a folder of built programs is named. Bundles contain only programs
    /// that were built here.
    fn needs(self, program: &Program, assets: Option<&Assets>) -> bool {
        self == Self::Node || !assets.is_some_and(|assets| assets.holds(program.name))
    }
}

#[derive(Debug)]
pub struct Missing {
    batches: Vec<Batch>,
    has_files: bool,
}

pub fn missing(workspace: &Workspace, purpose: Purpose) -> anyhow::Result<Missing> {
    let assets = Assets::from_env().filter(|_| purpose != Purpose::Node);
    if let Some(assets) = &assets {
        eprintln!("tools: {}", assets.describe());
    }
    let mut batches = Vec::new();
    for set in purpose.sets() {
        let store = workspace.tools(set.store);
        let key = key::for_set(workspace, set)?;
        let folder = store.join(&key);
        fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        let missing = set.programs.iter().filter(|program| {
            purpose.needs(program, assets.as_ref()) && !folder.join(program.name).is_file()
        });
        let missing = batch::group(missing, &folder);
        if !missing.is_empty() {
            go::check(workspace, set)?;
        }
        // Tests find the programs by this name, even if nothing has to be built.
        set_current(&store, &key)?;
        batches.extend(missing);
    }
    Ok(Missing { batches, has_files: purpose == Purpose::Tests })
}

impl Missing {
    pub fn count(&self, workspace: &Workspace) -> anyhow::Result<usize> {
        if self.has_files {
            files::ensure(workspace)?;
        }
        let mut packages = BTreeSet::new();
        for batch in &self.batches {
            packages.extend(go::stale(workspace, batch)?);
        }
        Ok(packages.len())
    }

    pub fn build(&self, workspace: &Workspace, progress: &Progress) -> anyhow::Result<()> {
        for batch in &self.batches {
            let _lock = lock(batch.folder())?;
            batch.build(workspace, || progress.step(Lane::Go))?;
        }
        Ok(())
    }
}

pub fn ensure(workspace: &Workspace, purpose: Purpose) -> anyhow::Result<()> {
    let missing = missing(workspace, purpose)?;
    let packages = missing.count(workspace)?;
    if missing.batches.is_empty() {
        return Ok(());
    }
    Progress::show(|progress| {
        progress.expect(Lane::Go, packages);
        missing.build(workspace, progress)
    })
}

pub fn of_a_node(workspace: &Workspace) -> anyhow::Result<[PathBuf; 3]> {
    ensure(workspace, Purpose::Node)?;
    let folder = |set: &Set| -> anyhow::Result<PathBuf> {
        Ok(workspace.tools(set.store).join(key::for_set(workspace, set)?))
    };
    Ok([folder(&CONTROL_PLANE)?, folder(&NODE)?, folder(&ADMIN)?])
}

pub fn admin(workspace: &Workspace, name: &str) -> anyhow::Result<PathBuf> {
    let path = workspace.tools(ADMIN.store).join(key::for_set(workspace, &ADMIN)?).join(name);
    anyhow::ensure!(path.is_file(), "{name} is missing: run `cargo xtask tools`");
    Ok(path)
}

/// Allows one build at a time in a folder, because two would collide in temporary names and compete for the cores.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join(".lock");
    let file = File::create(&path).with_context(|| format!("failed to create {}", path.display()))?;
    if file.try_lock().is_err() {
        eprintln!("tools: another `cargo xtask` builds the same programs, waiting for it");
        file.lock().with_context(|| format!("failed to lock {}", path.display()))?;
    }
    Ok(file)
}

/// Replaces the file `current` by a rename, because a test may read it at any moment.
fn set_current(store: &Path, key: &str) -> anyhow::Result<()> {
    let unfinished: PathBuf = store.join(".current.unfinished");
    fs::write(&unfinished, format!("{key}\n")).context("failed to write the name of the current tools")?;
    fs::rename(&unfinished, store.join("current")).context("failed to set the current tools")
}
