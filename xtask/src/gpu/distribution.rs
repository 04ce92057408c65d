//! Builds the small root file system of another distribution than the machine's, for an image that is made there:
//! Debian's C library, linker and C compiler, and a Python. `PyTorch` is the machine's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::bundle;

/// Debian's release. Its C library (2.36) fits the machine's Python. It must differ from the machine's own, because the
/// image is there to test another distribution.
const SUITE: &str = "bookworm";

/// The packages that `torch.compile` needs: a C compiler, the libraries of Python's modules, and `ldconfig`, by which
/// Triton finds the driver.
const PACKAGES: &str = "base-files,bash,coreutils,dash,gcc,grep,libbz2-1.0,libc-bin,libc6-dev,libffi8,liblzma5,\
                        libsqlite3-0,libssl3,libuuid1,sed,zlib1g";

/// Paths below the root that nothing uses. They are removed so that the bundle fits its limit.
const UNUSED_PATHS: [&str; 5] = [
    "usr/share",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/gcc/x86_64-linux-gnu/12/lto1",
    "usr/bin/lto-dump-12",
    "var",
];

const UNUSED_PYTHON_PARTS: [&str; 5] = ["test", "idlelib", "ensurepip", "lib2to3", "site-packages"];

/// Builds the root file system. `python` is the prefix of a Python with a shared library, built for a C library at most
/// as new as the suite's.
pub fn make(python: &Path, root: &Path) -> anyhow::Result<()> {
    let mut strap = Command::new("mmdebstrap");
    strap.args(["--variant=extract", "--quiet"]).arg(format!("--include={PACKAGES}")).arg(SUITE).arg(root);
    bundle::run(&mut strap).context("mmdebstrap makes the root (Debian: apt-get install mmdebstrap)")?;
    for path in UNUSED_PATHS {
        bundle::run(Command::new("rm").args(["-r", "-f"]).arg(root.join(path)))?;
    }
    sanitizers(&root.join("usr/lib"))?;
    let (prefix, library) = (root.join("opt/python"), library(python)?);
    fs::create_dir_all(&prefix).context("failed to create Python's folder")?;
    for part in ["bin", "include", "lib"] {
        bundle::run(Command::new("cp").arg("--recursive").arg(python.join(part)).arg(&prefix))?;
    }
    let version = version(&prefix.join("lib"))?;
    for part in UNUSED_PYTHON_PARTS {
        bundle::run(Command::new("rm").args(["-r", "-f"]).arg(prefix.join("lib").join(&version).join(part)))?;
    }
    let unused = ["(", "-name", "__pycache__", "-o", "-name", "config-3*", ")", "-prune"];
    let mut find = Command::new("find");
    find.arg(&prefix).args(unused).args(["-exec", "rm", "-r", "{}", "+"]);
    bundle::run(&mut find)?;
    // The loader searches this folder without configuration.
    bundle::run(Command::new("cp").arg(library).arg(root.join("usr/lib/x86_64-linux-gnu")))
}

fn sanitizers(folder: &Path) -> anyhow::Result<()> {
    bundle::run(Command::new("find").arg(folder).args(["-name", "lib?san*", "-delete"]))
}

fn library(python: &Path) -> anyhow::Result<PathBuf> {
    let folder = python.join("lib");
    let entries = fs::read_dir(&folder).with_context(|| format!("failed to list {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.retain(|path| {
        path.to_string_lossy().contains("/libpython3.") && path.to_string_lossy().ends_with(".so.1.0")
    });
    paths.pop().with_context(|| {
        format!("{} has no libpython3.*.so.1.0: name a Python built with --enable-shared", folder.display())
    })
}

fn version(lib: &Path) -> anyhow::Result<String> {
    let entries = fs::read_dir(lib).with_context(|| format!("failed to list {}", lib.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    let mut versions: Vec<_> = names.into_iter().filter(|name| name.starts_with("python3.")).collect();
    ensure!(versions.len() == 1, "{} has the Pythons {versions:?}: one is needed", lib.display());
    versions.pop().context("there is one")
}
