//! `cargo xtask test`: runs everything that must hold before a change lands, or parts of it for the inner loop.

use std::process::Command;
use std::thread;

use anyhow::anyhow;
use clap::Subcommand;

use crate::bench::explore;
use crate::workspace::Workspace;
use crate::{build, cargo, cross};

const CARGO_DENY: &str = "cargo-deny@0.20.2";

/// Makes clippy the compiler of the workspace's crates, so that lints need no build of their own. `cargo clippy` sets
/// the same two variables. Dependencies are compiled without it.
const LINT_ENVIRONMENT: [(&str, &str); 2] = [
    ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"),
    ("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"),
];

/// The number of tests with a control plane for each core. They mostly wait, so this many keep the cores busy. With
/// more, tests miss their timeouts.
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
    build::everything(workspace, &["--all-targets"], &LINT_ENVIRONMENT)?;
    thread::scope(|scope| {
        // These builds compile while tests wait. Tests of the images, and of the page about making them, use what is
        // built by then.
        let others =
            scope.spawn(|| static_programs(workspace).and_then(|()| cross::run(workspace, &["linux"])));
        let tested =
            unit(workspace, &LINT_ENVIRONMENT).and_then(|()| system(workspace, &[], &LINT_ENVIRONMENT));
        tested.and(others.join().map_err(|_| anyhow!("a build beside the tests panicked"))?)
    })?;
    bans(workspace)?;
    eprintln!("xtask: all checks passed");
    Ok(())
}

/// Always builds the whole workspace with the same features, because selected packages would be another build.
fn tests(workspace: &Workspace, environment: &[(&str, &str)]) -> Command {
    let mut tests = cargo::command(workspace);
    tests.args(["test", "--locked", "--workspace"]).envs(environment.iter().copied());
    tests
}

fn unit(workspace: &Workspace, environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut tests = tests(workspace, environment);
    tests.args(["--exclude", explore::PACKAGE]);
    // The pattern excludes only the program `system`.
    tests.args(["--no-fail-fast", "--lib", "--bins", "--test", "[!s]*"]);
    cargo::step("tests in a process", &mut tests)?;
    explore::test(workspace)
}

fn system(workspace: &Workspace, names: &[String], environment: &[(&str, &str)]) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut tests = tests(workspace, environment);
    tests.args(["--test", "system", "--"]).args(names);
    tests.arg(format!("--test-threads={}", cores * TESTS_PER_CORE));
    cargo::step("tests across processes", &mut tests)
}

fn static_programs(workspace: &Workspace) -> anyhow::Result<()> {
    let mut images = cargo::yielding(&Command::new(workspace.built("debug", "kerf-images")));
    images.args(["kerf-webhook", "kerf-extender", "--profile=dev"]);
    images.arg("--output").arg(workspace.images().with_file_name("images-of-tests"));
    cargo::step("static programs for images", &mut images)
}

fn bans(workspace: &Workspace) -> anyhow::Result<()> {
    let tools = workspace.cargo_tools();
    let deny = tools.join("bin/cargo-deny");
    if !deny.is_file() {
        let root = tools.display().to_string();
        // Unoptimised, because it runs for a second and an optimised build takes minutes.
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
    // A build fetches only the crates of its own target, but the check reads those of every target in deny.toml.
    cargo::run(workspace, "crates of every target", &["fetch", "--locked"])?;
    let mut check = Command::new(deny);
    check.current_dir(workspace.root()).args(["--offline", "check", "bans", "licenses", "sources"]);
    cargo::step("dependencies", &mut check)
}
