//! `cargo xtask test`: everything that must hold before a change lands.

use crate::workspace::Workspace;
use crate::{build, cargo};

/// The version of cargo-deny that is installed where there is none.
const CARGO_DENY: &str = "cargo-deny@0.20.2";

/// Runs all checks; the first that fails ends the run.
pub fn run(workspace: &Workspace) -> anyhow::Result<()> {
    cargo::run(workspace, "formatting", &["fmt", "--all", "--check"])?;
    build::everything(workspace, &["--all-targets"])?;
    cargo::run(
        workspace,
        "lints",
        &["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"],
    )?;
    cargo::run(workspace, "tests", &["test", "--workspace", "--locked", "--no-fail-fast"])?;
    bans(workspace)?;
    eprintln!("xtask: all checks passed");
    Ok(())
}

/// Crates that must not come in, licences and sources: deny.toml.
fn bans(workspace: &Workspace) -> anyhow::Result<()> {
    let tools = workspace.cargo_tools();
    let deny = tools.join("bin/cargo-deny");
    if !deny.is_file() {
        let root = tools.display().to_string();
        // Unoptimised: it runs for a second and would compile for minutes.
        cargo::run(
            workspace,
            "installing cargo-deny",
            &[
                "install",
                CARGO_DENY,
                "--locked",
                "--debug",
                "--quiet",
                "--no-default-features",
                "--root",
                &root,
            ],
        )?;
    }
    let mut check = std::process::Command::new(deny);
    check.current_dir(workspace.root()).args(["--offline", "check", "bans", "licenses", "sources"]);
    cargo::step("dependencies", &mut check)
}
