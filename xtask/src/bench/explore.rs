//! `cargo xtask bench explore`: leaders and agents in virtual time, whatever happens. With `--planted` it puts one bug
//! after the other into a copy of the sources, and each must be found.

use super::planted;
use crate::cargo;
use crate::workspace::Workspace;

/// The dev profile, because it is built in half the time and the explorer's crate is optimised enough in it.
pub(super) const BUILD: [&str; 4] = ["build", "--locked", "--package", "kerf-explorer"];
pub(super) const PROGRAM: &str = "kerf_explore";

pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    if let Some(flag) = arguments.iter().position(|flag| flag == "--planted") {
        return planted::run(workspace, &arguments[flag + 1..]);
    }
    cargo::run(workspace, "building the explorer", &BUILD)?;
    cargo::run_built(workspace, "debug", PROGRAM, arguments)
}
