//! `cargo xtask test`: everything that must hold before a change lands; and parts of it, for the time before that.

use std::process::Command;
use std::thread;

use anyhow::anyhow;
use clap::Subcommand;

use crate::workspace::Workspace;
use crate::{build, cargo, cross};

/// The version of cargo-deny that is installed where there is none.
const CARGO_DENY: &str = "cargo-deny@0.20.2";

/// Clippy compiles as rustc does and reports its lints on the way, so that lints take no build of their own. Both variables are
/// those that `cargo clippy` sets; crates of others are compiled without it.
const LINTED: [(&str, &str); 2] = [
    ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"),
    ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"),
];

/// Tests with a control plane wait much of their time: so many of them for each core keep the cores at work. More make them late.
const TESTS_PER_CORE: usize = 2;

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
    thread::scope(|scope| {
        // They compile while tests wait. Tests of the images, and of the page that makes them, take what is there.
        let others =
            scope.spawn(|| static_programs(workspace).and_then(|()| cross::run(workspace, &["linux"])));
        let tested = unit(workspace, &LINTED).and_then(|()| system(workspace, &[], &LINTED));
        tested.and(others.join().map_err(|_| anyhow!("a build beside the tests panicked"))?)
    })?;
    bans(workspace)?;
    eprintln!("xtask: all checks passed");
    Ok(())
}

/// Whatever is tested, the whole workspace is built with the same features: those of some packages would be another build.
fn tests(workspace: &Workspace, environment: &[(&str, &str)]) -> Command {
    let mut tests = cargo::command(workspace);
    tests.args(["test", "--locked", "--workspace"]).envs(environment.iter().copied());
    tests
}

fn unit(workspace: &Workspace, environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut tests = tests(workspace, environment);
    // The one program that is not meant is `system`.
    tests.args(["--no-fail-fast", "--lib", "--bins", "--test", "[!s]*"]);
    cargo::step("tests in a process", &mut tests)
}

fn system(workspace: &Workspace, names: &[String], environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut tests = tests(workspace, environment);
    tests.args(["--test", "system", "--"]).args(names);
    tests.arg(format!("--test-threads={}", cores * TESTS_PER_CORE));
    cargo::step("tests across processes", &mut tests)
}

/// The static programs that tests put into images.
fn static_programs(workspace: &Workspace) -> anyhow::Result<()> {
    let mut images = cargo::yielding(&Command::new(workspace.built("debug", "kerf-images")));
    images.args(["kerf-webhook", "kerf-extender", "--profile=dev"]);
    images.arg("--output").arg(workspace.images().with_file_name("images-of-tests"));
    cargo::step("static programs for images", &mut images)
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
    // A build has only the crates of its own target, and the check reads those of every target that deny.toml names.
    cargo::run(workspace, "crates of every target", &["fetch", "--locked"])?;
    let mut check = Command::new(deny);
    check.current_dir(workspace.root()).args(["--offline", "check", "bans", "licenses", "sources"]);
    cargo::step("dependencies", &mut check)
}
