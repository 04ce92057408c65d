//! `cargo xtask cross`: kerf's programs, compiled and linked for processors and systems that this machine is not.
//!
//! Releases are built on such machines themselves (`.github/workflows/release.yml`); this is how a change that would stop
//! them is found before. The linker and the C compiler are zig's, by cargo-zigbuild; both come by the Python package index.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo;
use crate::workspace::Workspace;

/// What is built for one target.
#[derive(Debug)]
struct Target {
    /// Rust's name of it.
    name: &'static str,
    /// cargo-zigbuild's name: with the oldest glibc that images have.
    linked: &'static str,
    command: &'static str,
    packages: &'static [&'static str],
}

/// The agent opens NVML and is linked with glibc, so that target says more than the static one; the other programs are made of
/// the same crates. macOS's frameworks come with its own tools alone: there the command line is compiled and not linked.
const TARGETS: [Target; 2] = [
    Target {
        name: "aarch64-unknown-linux-gnu",
        linked: "aarch64-unknown-linux-gnu.2.34",
        command: "zigbuild",
        packages: &["kerf-node-agent"],
    },
    Target {
        name: "aarch64-apple-darwin",
        linked: "aarch64-apple-darwin",
        command: "check",
        packages: &["kerf"],
    },
];

const PYTHON_PACKAGES: [&str; 2] = ["cargo-zigbuild==0.24.1", "ziglang==0.17.1"];

/// Builds for these systems, such as `linux`. What cannot be had here is said to be not run; what can be had and does not build is
/// an error.
pub fn run(workspace: &Workspace, systems: &[&str]) -> anyhow::Result<()> {
    let Some(zigbuild) = zigbuild(workspace) else {
        eprintln!("xtask: programs for other machines: NOT RUN (no {} by pip)", PYTHON_PACKAGES.join(", "));
        return Ok(());
    };
    for target in TARGETS.iter().filter(|target| systems.iter().any(|system| target.name.contains(system))) {
        let added = Command::new("rustup").args(["target", "add", target.name]).output();
        if !added.is_ok_and(|output| output.status.success()) {
            eprintln!("xtask: programs for {}: NOT RUN (no standard library by rustup)", target.name);
            continue;
        }
        let what = format!("programs for {}", target.name);
        cargo::step(&what, &mut cargo::yielding(&target.build(workspace, &zigbuild)))?;
    }
    Ok(())
}

impl Target {
    fn build(&self, workspace: &Workspace, zigbuild: &Zigbuild) -> Command {
        let mut build = Command::new(&zigbuild.program);
        build.current_dir(workspace.root()).args([
            self.command,
            "--locked",
            "--quiet",
            "--target",
            self.linked,
        ]);
        build.args(self.packages.iter().flat_map(|package| ["--package", package]));
        // Where the images' programs are built: macros and the like are there already, and cargo locks the folder where tests run.
        build.arg("--target-dir").arg(workspace.images_build());
        build.env("CARGO_ZIGBUILD_ZIG_PATH", &zigbuild.zig).env("CARGO_PROFILE_DEV_DEBUG", "0");
        // What both keep between builds, in no folder of the user's.
        build.env("CARGO_ZIGBUILD_CACHE_DIR", &zigbuild.cache).env("ZIG_GLOBAL_CACHE_DIR", &zigbuild.cache);
        build
    }
}

/// Where cargo-zigbuild and zig are.
#[derive(Debug)]
struct Zigbuild {
    program: PathBuf,
    zig: PathBuf,
    cache: PathBuf,
}

/// Installs both beside the other tools, unless they are there; none if there is no pip or nothing to be had by it.
fn zigbuild(workspace: &Workspace) -> Option<Zigbuild> {
    let folder = workspace.tools("cross-tools");
    let program = folder.join("bin/cargo-zigbuild");
    if !program.is_file() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
            .arg(&folder)
            .args(PYTHON_PACKAGES);
        let output = pip.output().ok()?;
        if !output.status.success() {
            return None;
        }
    }
    let (zig, cache) = (folder.join("ziglang/zig"), folder.join("cache"));
    program.is_file().then_some(Zigbuild { program, zig, cache })
}
