//! `cargo xtask bench mutants`: changes decisions in a copy of the sources, and counts those that the tests notice.

use super::sources;
use crate::cargo;
use crate::workspace::Workspace;

pub(super) fn run(workspace: &Workspace, flags: &[String]) -> anyhow::Result<()> {
    let copy = workspace.mutants();
    sources::copy(workspace, &copy)?;
    cargo::run(
        workspace,
        "building the maker of mutants",
        &["build", "--locked", "--package", "kerf-mutants"],
    )?;
    let sources = format!("--sources={}", copy.display());
    let arguments: Vec<String> = [sources].into_iter().chain(flags.iter().cloned()).collect();
    cargo::run_built(workspace, "debug", "kerf_mutants", &arguments)
}
