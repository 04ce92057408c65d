//! `cargo xtask tools`: the programs of the local control plane, those that an admin installs with, and NVIDIA's own, built once
//! from pinned Go modules; and those of a node, for `cargo xtask gpu pack`.
//!
//! Decides what is missing and builds that. `<target>/<store>/<key>/` holds one set; the file `<target>/<store>/current`
//! names the set in use, and is all that `kerf_tests::binaries` reads: the rule that makes the key stays here. Must not
//! change go.mod or go.sum, nor print where modules come from.

mod assets;
mod catalog;
mod cgo;
mod files;
mod go;
mod key;
mod progress;
mod redact;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;

use self::assets::Assets;
pub use self::catalog::KUBERNETES_VERSION;
use self::catalog::{ADMIN, CONTROL_PLANE, MONITORING, NODE, NVIDIA, Program, Set};
use self::progress::Progress;
use crate::workspace::Workspace;

/// Makes sure that every program that tests need is there, building the missing ones; says in one line per set where they are.
pub fn ensure(workspace: &Workspace) -> anyhow::Result<()> {
    let assets = Assets::from_env();
    if let Some(assets) = &assets {
        eprintln!("tools: {}", assets.describe());
    }
    let spared = |program: &Program| assets.as_ref().is_some_and(|a| a.holds(program.name));
    provide(workspace, &CONTROL_PLANE, spared)?;
    provide(workspace, &ADMIN, |_| false)?;
    provide(workspace, &NVIDIA, |_| false)?;
    provide(workspace, &MONITORING, |_| false)?;
    files::ensure(workspace)
}

/// The same for all programs of a control plane, of a node, and that an admin installs with; gives the folders that they lie in.
pub fn everything(workspace: &Workspace) -> anyhow::Result<[PathBuf; 3]> {
    let all = |set| provide(workspace, set, |_| false);
    Ok([all(&CONTROL_PLANE)?, all(&NODE)?, all(&ADMIN)?])
}

/// One of the programs that an admin installs with, which [`ensure`] has built.
pub fn admin(workspace: &Workspace, name: &str) -> anyhow::Result<PathBuf> {
    let path = workspace.tools(ADMIN.store).join(key::of(workspace, &ADMIN)?).join(name);
    anyhow::ensure!(path.is_file(), "{name} is missing: run `cargo xtask tools`");
    Ok(path)
}

/// Builds what a set lacks, but for programs that are not needed; gives the set's folder.
fn provide(workspace: &Workspace, set: &Set, spared: impl Fn(&Program) -> bool) -> anyhow::Result<PathBuf> {
    let store = workspace.tools(set.store);
    let key = key::of(workspace, set)?;
    let folder = store.join(&key);
    let wanted: Vec<&Program> = set.programs.iter().filter(|program| !spared(program)).collect();
    if wanted.is_empty() {
        return Ok(folder);
    }
    fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;

    let _lock = lock(&store)?;
    let missing: Vec<&Program> =
        wanted.into_iter().filter(|program| !folder.join(program.name).is_file()).collect();
    if missing.is_empty() {
        set_current(&store, &key)?;
        eprintln!("tools: cached in {}", folder.display());
        return Ok(folder);
    }
    let began = Instant::now();
    go::check(workspace, set)?;
    build(workspace, &missing, &folder)?;
    set_current(&store, &key)?;
    eprintln!("tools: built {} in {} s into {}", missing.len(), began.elapsed().as_secs(), folder.display());
    Ok(folder)
}

/// Builds each program under a temporary name and renames it, so that an interrupted build leaves no half program and
/// the finished ones need not be built again.
fn build(workspace: &Workspace, missing: &[&Program], folder: &Path) -> anyhow::Result<()> {
    eprintln!(
        "tools: building {} Go programs, about a minute each on two idle cores the first time",
        missing.len()
    );
    for (index, program) in missing.iter().enumerate() {
        let unfinished = folder.join(format!(".{}.unfinished", program.name));
        let progress = Progress::new(program.name, index + 1, missing.len());
        go::build(workspace, program, &unfinished, progress)?;
        fs::rename(&unfinished, folder.join(program.name))
            .with_context(|| format!("failed to move the built {} into place", program.name))?;
    }
    Ok(())
}

/// One build at a time in one store: two would fight over the temporary names and over the cores.
fn lock(store: &Path) -> anyhow::Result<File> {
    let path = store.join(".lock");
    let file = File::create(&path).with_context(|| format!("failed to create {}", path.display()))?;
    if file.try_lock().is_err() {
        eprintln!("tools: another `cargo xtask tools` is at work, waiting for it");
        file.lock().with_context(|| format!("failed to lock {}", path.display()))?;
    }
    Ok(file)
}

/// Writes the file `current` by a rename, for a test may read it at any moment.
fn set_current(store: &Path, key: &str) -> anyhow::Result<()> {
    let unfinished: PathBuf = store.join(".current.unfinished");
    fs::write(&unfinished, format!("{key}\n")).context("failed to write the name of the current tools")?;
    fs::rename(&unfinished, store.join("current")).context("failed to set the current tools")
}
