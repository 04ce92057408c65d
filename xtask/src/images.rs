//! `cargo xtask images`: runs `xtask/images`, a crate of its own, so that other tasks need not compile its
//! dependencies.

use crate::cargo;
use crate::workspace::Workspace;

pub fn run(workspace: &Workspace, arguments: &[String]) -> anyhow::Result<()> {
    cargo::run(
        workspace,
        "building the image builder",
        &["build", "--locked", "--quiet", "--package", "kerf-images"],
    )?;
    cargo::run_built(workspace, "debug", "kerf-images", arguments)
}
