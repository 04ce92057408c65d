//! `cargo xtask images`: hands over to `xtask/images`, which has more dependencies than other tasks should wait for.

use crate::cargo;
use crate::workspace::Workspace;

/// Builds that program and runs it.
pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    cargo::run(
        workspace,
        "building the image builder",
        &["build", "--locked", "--quiet", "--package", "kerf-images"],
    )?;
    cargo::run_built(workspace, "debug", "kerf-images", arguments)
}
