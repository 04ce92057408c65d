//! `cargo xtask test`: everything that must hold before a change lands; and parts of it, for the time before that.

use std::process::Command;

use clap::Subcommand;

use crate::workspace::Workspace;
use crate::{build, cargo};

/// The version of cargo-deny that is installed where there is none.
const CARGO_DENY: &str = "cargo-deny@0.20.2";

/// Clippy compiles as rustc does and reports its lints on the way, so that lints take no build of their own. Both variables are
/// those that `cargo clippy` sets; crates of others are compiled without it.
const LINTED: [(&str, &str); 2] = [
    ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"),
    ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"),
];

/// Tests with a control plane wait most of their time: so many of them for each core keep the cores at work.
const TESTS_PER_CORE: usize = 3;

/// A part of the tests.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// What needs no control plane: seconds, and no Go.
    Unit,
    /// Tests across processes, on local control planes.
    System {
        /// Only tests whose path has one of these in it, for example `guard::`.
        names: Vec<String>,
    },
}

/// Runs all checks, or a part of the tests; the first that fails ends the run.
pub fn run(workspace: &Workspace, part: Option<Part>) -> anyhow::Result<()> {
    match part {
        Some(Part::Unit) => return unit(workspace, &[]),
        Some(Part::System { names }) => {
            build::everything(workspace, &["--all-targets"], &[])?;
            return system(workspace, &names, &[]);
        }
        None => {}
    }
    cargo::run(workspace, "formatting", &["fmt", "--all", "--check"])?;
    build::everything(workspace, &["--all-targets"], &LINTED)?;
    unit(workspace, &LINTED)?;
    system(workspace, &[], &LINTED)?;
    bans(workspace)?;
    eprintln!("xtask: all checks passed");
    Ok(())
}

fn unit(workspace: &Workspace, environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let all = ["test", "--locked", "--no-fail-fast", "--workspace", "--exclude", "kerf-tests"];
    let mut tests = cargo::command(workspace);
    cargo::step("tests in a process", tests.args(all).envs(environment.iter().copied()))?;
    let of_the_stand_ins =
        ["test", "--locked", "--no-fail-fast", "--package", "kerf-tests", "--lib", "--bins"];
    let mut tests = cargo::command(workspace);
    cargo::step("tests of stand-ins", tests.args(of_the_stand_ins).envs(environment.iter().copied()))
}

fn system(workspace: &Workspace, names: &[String], environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut tests = cargo::command(workspace);
    tests.args(["test", "--locked", "--package", "kerf-tests", "--test", "system", "--"]).args(names);
    tests.arg(format!("--test-threads={}", cores * TESTS_PER_CORE));
    cargo::step("tests across processes", tests.envs(environment.iter().copied()))
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
    let mut check = Command::new(deny);
    check.current_dir(workspace.root()).args(["--offline", "check", "bans", "licenses", "sources"]);
    cargo::step("dependencies", &mut check)
}
