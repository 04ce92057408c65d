//! `cargo xtask cross`: compiles and links kerf's programs for processors and systems other than this machine's.
//!
//! Releases are built on such machines themselves (`.github/workflows/release.yml`). This task finds earlier which
//! changes would break them. The linker and the C compiler are zig's, used by cargo-zigbuild; both are installed from
//! the Python package index.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo;
use crate::workspace::Workspace;

#[derive(Debug)]
struct Target {
    name: &'static str,
    /// The target in cargo-zigbuild's form. It names the oldest glibc of the images, because a program must not need a
    /// newer one.
    linked: &'static str,
    command: &'static str,
    packages: &'static [&'static str],
}

/// The agent loads NVML and is linked with glibc, so its target tests more than a static one, and the other programs
/// have the same crates. The command line is compiled for macOS but not linked, because macOS's frameworks come only
/// with Apple's tools.
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

/// Builds for these systems, such as `linux`. A target that cannot be installed here is reported as not run; a failing
/// build is an error.
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
        // The images' build folder already has macros and similar crates, and cargo locks the default folder while
        // tests run.
        build.arg("--target-dir").arg(workspace.images_build());
        build.env("CARGO_ZIGBUILD_ZIG_PATH", &zigbuild.zig).env("CARGO_PROFILE_DEV_DEBUG", "0");
        // The caches are here, so that both tools write nothing into the user's folders.
        build.env("CARGO_ZIGBUILD_CACHE_DIR", &zigbuild.cache).env("ZIG_GLOBAL_CACHE_DIR", &zigbuild.cache);
        build
    }
}

#[derive(Debug)]
struct Zigbuild {
    program: PathBuf,
    zig: PathBuf,
    cache: PathBuf,
}

/// Installs both beside the other tools, if they are missing; `None` if pip is missing or fails.
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
