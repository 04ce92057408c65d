//! `cargo xtask bench explore`: leaders and agents in virtual time, whatever happens; `--planted` puts one bug after the other into
//! a copy of the sources, and each must be found within a minute.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use super::sources;
use crate::cargo;
use crate::workspace::Workspace;

/// Optimised enough in the dev profile, which is built in half the time.
const BUILD: [&str; 4] = ["build", "--locked", "--package", "kerf-explorer"];
const PROGRAM: &str = "kerf_explore";
/// Where the bugs are, as patches. The first line of each says what it does.
const PLANTED: &str = "tests/explorer/planted";
/// How the explorer begins to tell what it has found.
const FOUND: &str = "VIOLATION ";

/// Explores, or tries whether planted bugs are found: those whose names contain what follows the flag.
pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    let Some(flag) = arguments.iter().position(|flag| flag == "--planted") else {
        cargo::run(workspace, "building the explorer", &BUILD)?;
        return cargo::run_built(workspace, "debug", PROGRAM, arguments);
    };
    let copy = workspace.planted();
    sources::copy(workspace, &copy)?;
    let names = &arguments[flag + 1..];
    let mut bugs = bugs(workspace.root())?;
    bugs.retain(|bug| names.iter().all(|name| bug.to_string_lossy().contains(name)));
    let mut missed = Vec::new();
    for bug in &bugs {
        let name = bug.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        patch(&copy, bug, &[])?;
        let found = explore(&copy);
        patch(&copy, bug, &["--reverse"])?;
        match found.with_context(|| format!("with the bug {name}"))? {
            Some(what) => println!("{name}: found {what}"),
            None => missed.push(name),
        }
    }
    println!("planted bugs, each found within a minute: {} of {}", bugs.len() - missed.len(), bugs.len());
    ensure!(missed.is_empty(), "not found: {}", missed.join(", "));
    Ok(())
}

fn bugs(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files = fs::read_dir(root.join(PLANTED))?.map(|file| Ok(file?.path()));
    let mut bugs = files.collect::<anyhow::Result<Vec<_>>>()?;
    bugs.sort();
    Ok(bugs)
}

/// Applies a patch to a folder that is not taken for a part of the repository that it lies in.
fn patch(folder: &Path, patch: &Path, flags: &[&str]) -> anyhow::Result<()> {
    let above = folder.parent().context("the copy lies in a folder")?;
    let mut git = Command::new("git");
    git.current_dir(folder).env("GIT_CEILING_DIRECTORIES", above).arg("apply").args(flags).arg(patch);
    ensure!(git.status()?.success(), "{} cannot be applied", patch.display());
    Ok(())
}

/// What the explorer of a copy finds within a minute, and after how long.
fn explore(copy: &Path) -> anyhow::Result<Option<String>> {
    let target = copy.join("target");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // One bug is a line or two.
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", &target).env("CARGO_INCREMENTAL", "1");
    cargo.args(BUILD).arg("--quiet");
    ensure!(cargo.status()?.success(), "it cannot be built");
    let began = Instant::now();
    let output = Command::new(target.join("debug").join(PROGRAM)).args(["--minutes", "1"]).output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let found = said.lines().find_map(|line| Some(line.split_once(FOUND)?.1));
    match (output.status.success(), found) {
        (true, _) => Ok(None),
        (false, Some(what)) => Ok(Some(format!("after {:.1} s: {what}", began.elapsed().as_secs_f32()))),
        (false, None) => bail!("the explorer has failed:\n{said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_can_be_planted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let bugs = bugs(root).unwrap();
        assert!(bugs.len() > 10);
        for bug in bugs {
            patch(root, &bug, &["--check"]).unwrap();
        }
    }
}
