//! `cargo xtask bench explore`: leaders and agents in virtual time, whatever happens; `--planted` puts one bug after the other into
//! a copy of the sources, and each must be found.

use super::planted;
use crate::cargo;
use crate::workspace::Workspace;

/// Optimised enough in the dev profile, which is built in half the time.
pub(super) const BUILD: [&str; 4] = ["build", "--locked", "--package", "kerf-explorer"];
pub(super) const PROGRAM: &str = "kerf_explore";

/// Explores, or tests whether planted bugs are found: those whose names contain every word after the flag.
pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    if let Some(flag) = arguments.iter().position(|flag| flag == "--planted") {
        return planted::run(workspace, &arguments[flag + 1..]);
    }
    cargo::run(workspace, "building the explorer", &BUILD)?;
    cargo::run_built(workspace, "debug", PROGRAM, arguments)
}
