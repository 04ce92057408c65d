//! Puts bugs into a copy of the sources, one after the other, to see whether they are found.
//!
//! Each is a patch in [`PLANTED`], below a text that describes the bug. The explorer must find it within a minute. If
//! the text names a test, that test must fail instead, because the explorer's worlds do not have every part of kerf.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use super::explore::{self, PROFILE, PROGRAM};
use super::sources;
use crate::workspace::Workspace;

const PLANTED: &str = "tests/explorer/planted";
const FOUND: &str = "VIOLATION ";
/// The prefix of the command that must fail. It is in the text of a bug that the explorer does not see.
const FAILS: &str = "Fails: cargo ";

pub(super) fn run(workspace: &Workspace, names: &[String]) -> anyhow::Result<()> {
    let copy = workspace.planted();
    sources::copy(workspace, &copy)?;
    let mut bugs = bugs(workspace.root())?;
    bugs.retain(|bug| names.iter().all(|name| bug.to_string_lossy().contains(name)));
    let mut missed = Vec::new();
    for bug in &bugs {
        let name = bug.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(bug)?;
        patch(&copy, bug, &[])?;
        let found = match command(&text) {
            Some(command) => test(&copy, &command),
            None => explore(&copy),
        };
        patch(&copy, bug, &["--reverse"])?;
        if let Some(what) = found.with_context(|| format!("with the bug {name}"))? {
            println!("{name}: found {what}");
        } else {
            println!("{name}: NOT FOUND");
            missed.push(name);
        }
    }
    println!("planted bugs that are found: {} of {}", bugs.len() - missed.len(), bugs.len());
    ensure!(missed.is_empty(), "not found: {}", missed.join(", "));
    Ok(())
}

fn bugs(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files = fs::read_dir(root.join(PLANTED))?.map(|file| Ok(file?.path()));
    let mut bugs = files.collect::<anyhow::Result<Vec<_>>>()?;
    bugs.sort();
    Ok(bugs)
}

fn command(patch: &str) -> Option<Vec<&str>> {
    let mut head = patch.lines().take_while(|line| !line.starts_with("diff "));
    let command = head.find_map(|line| line.strip_prefix(FAILS))?;
    Some(command.split_whitespace().collect())
}

/// Applies a patch to a folder. Git must not search for a repository above it, because it would apply the patch there.
fn patch(folder: &Path, patch: &Path, flags: &[&str]) -> anyhow::Result<()> {
    let above = folder.parent().context("the copy lies in a folder")?;
    let mut git = Command::new("git");
    git.current_dir(folder).env("GIT_CEILING_DIRECTORIES", above).arg("apply").args(flags).arg(patch);
    ensure!(git.status()?.success(), "{} cannot be applied", patch.display());
    Ok(())
}

fn cargo(copy: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The build is incremental, because one bug is a line or two.
    cargo.current_dir(copy).env("CARGO_TARGET_DIR", copy.join("target")).env("CARGO_INCREMENTAL", "1");
    cargo
}

fn explore(copy: &Path) -> anyhow::Result<Option<String>> {
    ensure!(
        cargo(copy).args(explore::cargo_arguments("build")).arg("--quiet").status()?.success(),
        "it cannot be built"
    );
    let began = Instant::now();
    let program = copy.join("target").join(PROFILE).join(PROGRAM);
    let output = Command::new(program).args(["--minutes", "1"]).output()?;
    let said = said(&output);
    let found = said.lines().find_map(|line| Some(line.split_once(FOUND)?.1));
    match (output.status.success(), found) {
        (true, _) => Ok(None),
        (false, Some(what)) => Ok(Some(format!("after {:.1} s: {what}", began.elapsed().as_secs_f32()))),
        (false, None) => bail!("the explorer has failed:\n{said}"),
    }
}

/// Which test of a copy fails, and after how long. It counts only if the test was run, because a name that matches no
/// test would also fail nothing.
fn test(copy: &Path, command: &[&str]) -> anyhow::Result<Option<String>> {
    let split = command.iter().position(|word| *word == "--").unwrap_or(command.len());
    let (what, run) = command.split_at(split);
    let name = command.last().context("the command names a test")?;
    let built = cargo(copy).args(what).args(["--locked", "--quiet", "--no-run"]).status()?;
    ensure!(built.success(), "the test cannot be built");
    let began = Instant::now();
    let output = cargo(copy).args(what).arg("--locked").args(run).output()?;
    let said = said(&output);
    let ended = |how: &str| said.contains(&format!("test {name} ... {how}"));
    match (output.status.success(), ended("ok"), ended("FAILED")) {
        (true, true, false) => Ok(None),
        (false, false, true) => {
            Ok(Some(format!("after {:.1} s: test {name}", began.elapsed().as_secs_f32())))
        }
        _ => bail!("the test {name} was not run:\n{said}"),
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
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

    #[test]
    fn a_patch_may_name_the_test_that_must_fail() {
        let patch =
            "What it does.\n\nFails: cargo test --package p --lib -- --exact a::b\n\ndiff --git a b\n";
        let words = ["test", "--package", "p", "--lib", "--", "--exact", "a::b"];
        assert_eq!(command(patch).unwrap(), words);
        assert_eq!(command("What it does.\n\ndiff --git a b\nFails: cargo test"), None);
    }
}
