//! `cargo xtask tools`: the programs of the local control plane, built once from pinned Go modules.
//!
//! Decides what is missing and builds that. `<target>/k8s-tools/<key>/` holds one set; the file
//! `<target>/k8s-tools/current` names the set in use, and is all that `kerf_tests::binaries` reads: the rule that makes
//! the key stays here. Must not change go.mod or go.sum, nor print where modules come from.

mod assets;
mod catalog;
mod go;
mod key;
mod progress;
mod redact;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;

use self::assets::Assets;
use self::catalog::{PROGRAMS, Program};
use self::progress::Progress;
use crate::workspace::Workspace;

/// Makes sure that every program is there, building the missing ones; says in one line where they are.
pub fn ensure(workspace: &Workspace) -> anyhow::Result<()> {
    let assets = Assets::from_env();
    if let Some(assets) = &assets {
        eprintln!("tools: {}", assets.describe());
    }
    let wanted: Vec<&Program> =
        PROGRAMS.iter().filter(|program| !assets.as_ref().is_some_and(|a| a.holds(program.name))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let store = workspace.k8s_tools();
    let key = key::of(workspace)?;
    let folder = store.join(&key);
    fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;

    let _lock = lock(&store)?;
    let missing: Vec<&Program> =
        wanted.into_iter().filter(|program| !folder.join(program.name).is_file()).collect();
    if missing.is_empty() {
        set_current(&store, &key)?;
        eprintln!("tools: cached in {}", folder.display());
        return Ok(());
    }
    let began = Instant::now();
    build(workspace, &missing, &folder)?;
    set_current(&store, &key)?;
    eprintln!("tools: built {} in {} s into {}", missing.len(), began.elapsed().as_secs(), folder.display());
    Ok(())
}

/// Builds each program under a temporary name and renames it, so that an interrupted build leaves no half program and
/// the finished ones need not be built again.
fn build(workspace: &Workspace, missing: &[&Program], folder: &Path) -> anyhow::Result<()> {
    go::check(workspace)?;
    eprintln!(
        "tools: building {} Go programs, about five minutes on two idle cores the first time",
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
