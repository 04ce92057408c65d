//! Provides the programs for images: cargo builds them for the right target, or has built them already.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;

use crate::catalog::{Beside, Description, Image, Linkage};
use crate::release::Release;
use crate::sbom::Toolchain;
use crate::system::Machine;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// As they ship: each with its own profile, the version with the commit in it, no path of this machine.
    Release,
    /// For tests: unoptimised. Dynamic programs are taken as `cargo build --workspace --bins` has left them.
    Dev,
}

const BUILD: &str = "images-build";

#[derive(Debug)]
pub struct Built {
    pub path: PathBuf,
    /// The target triple that it was built for.
    pub target: String,
}

#[derive(Debug)]
pub struct Places {
    pub root: PathBuf,
    /// Cargo's target folder, two levels above this executable.
    pub target: PathBuf,
}

impl Places {
    pub fn locate() -> anyhow::Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest.ancestors().nth(2).context("the crate lies in xtask/images")?.to_owned();
        let executable = env::current_exe().context("failed to find the path of kerf-images itself")?;
        let target = executable.ancestors().nth(2).context("kerf-images lies in <target>/<profile>/")?;
        Ok(Self { target: target.to_owned(), root })
    }
}

pub fn program(
    places: &Places,
    image: &'static Description,
    profile: Profile,
    machine: &Machine,
    release: &Release,
) -> anyhow::Result<Built> {
    let target = match image.linkage {
        Linkage::Static => format!("{}-unknown-linux-musl", machine.arch),
        Linkage::Dynamic => format!("{}-unknown-linux-gnu", machine.arch),
    };
    let name = match profile {
        Profile::Release => image.profile,
        Profile::Dev => "dev",
    };
    if profile == Profile::Dev && image.linkage == Linkage::Dynamic {
        let path = places.target.join("debug").join(image.program);
        ensure!(path.is_file(), "{} is missing: run `cargo build --workspace --bins`", path.display());
        return Ok(Built { path, target });
    }
    let packages = with((image.package, image.program), image.linkage, profile);
    compile(places, &packages, (image.program, name, target), profile, release)
}

pub fn beside(
    places: &Places,
    beside: &'static Beside,
    image: &Description,
    profile: Profile,
    (machine, release): (&Machine, &Release),
) -> anyhow::Result<Built> {
    let name = match profile {
        Profile::Release => image.profile,
        Profile::Dev => "dev",
    };
    let target = format!("{}-unknown-linux-musl", machine.arch);
    let packages = with((beside.package, beside.program), Linkage::Static, profile);
    compile(places, &packages, (beside.program, name, target), profile, release)
}

fn compile(
    places: &Places,
    programs: &[(&str, &str)],
    (program, name, target): (&str, &str, String),
    profile: Profile,
    release: &Release,
) -> anyhow::Result<Built> {
    provide(&target)?;
    let mut cargo = cargo();
    cargo.current_dir(&places.root).args(["build", "--locked", "--profile", name, "--target", &target]);
    for (package, program) in programs {
        cargo.args(["--package", package, "--bin", program]);
    }
    // The folder is a separate one. In a shared folder, cargo would rebuild crates for this machine, such as macros,
    // whenever two different builds take turns.
    let folder = places.target.join(BUILD);
    cargo.arg("--target-dir").arg(&folder);
    cargo.envs(environment(&target));
    match profile {
        Profile::Release => {
            cargo.env("KERF_VERSION", release.spoken()).env("RUSTFLAGS", remapped(&places.root)?);
        }
        // No debugger runs on dev images, so they have no debug information.
        Profile::Dev => drop(cargo.env("CARGO_PROFILE_DEV_DEBUG", "0")),
    }
    eprintln!("images: building {program} for {target}, profile {name}");
    let status = cargo.status().context("failed to start cargo")?;
    ensure!(status.success(), "building {program} failed ({status})");
    let of_profile = if profile == Profile::Dev { "debug" } else { name };
    Ok(Built { path: folder.join(&target).join(of_profile).join(program), target })
}

/// The programs to build together. A shipped program is built alone, so that its crates have exactly the features that
/// it asks for. For tests all are built together, because separate builds would invalidate each other's crates.
fn with(
    own: (&'static str, &'static str),
    linkage: Linkage,
    profile: Profile,
) -> Vec<(&'static str, &'static str)> {
    if profile == Profile::Release {
        return vec![own];
    }
    let all = Image::ALL.map(Image::description);
    let beside = all.iter().filter_map(|image| image.beside).filter(|_| linkage == Linkage::Static);
    let images = all.iter().filter(|image| image.linkage == linkage);
    let programs = images.map(|image| (image.package, image.program));
    programs.chain(beside.map(|beside| (beside.package, beside.program))).collect()
}

pub fn toolchain(target: &str) -> anyhow::Result<Toolchain> {
    let version = rustc(&["--version"])?;
    let rust = version.split_whitespace().nth(1).context("rustc reports no version")?.to_owned();
    if !target.ends_with("musl") {
        return Ok(Toolchain { rust, musl: None });
    }
    let libraries = rustc(&["--print", "target-libdir", "--target", target])?;
    Ok(Toolchain { rust, musl: Some(musl(Path::new(&libraries))?) })
}

/// Finds musl's version, which is a string in the library that Rust ships.
fn musl(libraries: &Path) -> anyhow::Result<String> {
    let path = libraries.join("self-contained/libc.a");
    let library = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let is_version = |text: &&str| {
        let numbers: Vec<&str> = text.split('.').collect();
        numbers.len() == 3 && numbers.iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut strings = library.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
    let version = strings.find(is_version);
    version.map(str::to_owned).with_context(|| format!("{} contains no version", path.display()))
}

fn provide(target: &str) -> anyhow::Result<()> {
    let libraries = rustc(&["--print", "target-libdir", "--target", target])?;
    if Path::new(&libraries).is_dir() {
        return Ok(());
    }
    eprintln!("images: fetching Rust's libraries for {target}");
    let added = Command::new("rustup").args(["target", "add", target]).status();
    ensure!(
        added.is_ok_and(|status| status.success()),
        "Rust's libraries for {target} are missing: run `rustup target add {target}`"
    );
    Ok(())
}

/// Settings for C compilers. ring's parts in C use nothing of libc but functions like `memcpy`, so the machine's own
/// compiler can build them for musl.
fn environment(target: &str) -> Vec<(String, String)> {
    let compiler = format!("CC_{}", target.replace('-', "_"));
    if !target.ends_with("musl") || env::var_os(&compiler).is_some() {
        return Vec::new();
    }
    vec![(compiler, "cc".to_owned())]
}

/// Compiler flags that keep the paths of this machine, of the checkout and of crates, out of a program, so that the
/// same sources give the same bytes.
fn remapped(root: &Path) -> anyhow::Result<String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.or_else(|| env::home_dir().map(|home| home.join(".cargo"))).context("cargo has no home")?;
    let sysroot = rustc(&["--print", "sysroot"])?;
    let (root, home) = (root.display(), home.display());
    Ok(format!(
        "--remap-path-prefix={root}=/kerf --remap-path-prefix={home}=/cargo --remap-path-prefix={sysroot}=/rust"
    ))
}

/// Cargo without the variables that it sets for tests. ring is rebuilt when they change, and shipped programs are
/// compiled by plain rustc.
fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let is_cargos = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "RUSTC_WORKSPACE_WRAPPER"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_cargos)) {
        cargo.env_remove(name);
    }
    cargo
}

fn rustc(arguments: &[&str]) -> anyhow::Result<String> {
    let program = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(program).args(arguments).output().context("failed to run rustc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "rustc {}: {}", arguments.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
