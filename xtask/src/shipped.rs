//! Collects the programs as they ship in one folder. Programs that mostly wait on many machines are built small,
//! because their memory depends on the size of their code.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::workspace::Workspace;
use crate::{build, cargo};

const SMALL: [&str; 2] = ["kerf-node-agent", "kerf-webhook"];

pub fn folder(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    build::everything(workspace, &["--release"], &[])?;
    assemble(workspace, &SMALL)
}

pub fn scheduler_bench(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    build::scheduler_bench(workspace)?;
    assemble(workspace, &["kerf-webhook"])
}

fn assemble(workspace: &Workspace, small: &[&'static str]) -> anyhow::Result<PathBuf> {
    let packages = small.iter().flat_map(|name| ["--package", name]);
    let arguments: Vec<&str> =
        ["build", "--profile", "lean", "--locked"].into_iter().chain(packages).collect();
    cargo::run(workspace, "building the small programs", &arguments)?;
    let folder = workspace.built("shipped", "");
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(workspace.built("release", ""))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            link(&entry.path(), &folder)?;
        }
    }
    small.iter().try_for_each(|name| link(&workspace.built("lean", name), &folder))?;
    Ok(folder)
}

fn link(file: &Path, folder: &Path) -> anyhow::Result<()> {
    let name = file.file_name().context("a file has a name")?;
    let there = folder.join(name);
    // An existing file is removed first, because a hard link cannot replace one.
    if there.exists() {
        fs::remove_file(&there)?;
    }
    fs::hard_link(file, &there).with_context(|| format!("failed to link {}", there.display()))
}
