//! `cargo xtask bench explore`: leaders and agents in virtual time, whatever happens. With `--planted` it puts one bug
//! after the other into a copy of the sources, and each must be found.

use super::planted;
use crate::cargo;
use crate::workspace::Workspace;

pub const PACKAGE: &str = "kerf-explorer";
pub(super) const PROGRAM: &str = "kerf_explore";
/// The profile in which the explorer is optimised, so that no other profile has to be. Its builds lie in a folder of
/// this name.
pub(super) const PROFILE: &str = "explore";

/// What cargo does with the explorer, in its profile.
pub(super) fn cargo_arguments(command: &str) -> [&str; 6] {
    [command, "--locked", "--profile", PROFILE, "--package", PACKAGE]
}

/// Runs the explorer's tests, some of which explore.
pub fn test(workspace: &Workspace) -> anyhow::Result<()> {
    cargo::run(workspace, "exploring", &cargo_arguments("test"))
}

pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    if let Some(flag) = arguments.iter().position(|flag| flag == "--planted") {
        return planted::run(workspace, &arguments[flag + 1..]);
    }
    cargo::run(workspace, "building the explorer", &cargo_arguments("build"))?;
    cargo::run_built(workspace, PROFILE, PROGRAM, arguments)
}
