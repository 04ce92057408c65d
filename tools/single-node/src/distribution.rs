//! Builds the image with `PyTorch` on this machine: a small root file system of another distribution, and the
//! machine's Python packages over it. Containers of it mount nothing from the machine, so they get only the
//! driver files that kerf adds.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::real_node::containerd_socket;
use anyhow::{Context as _, ensure};
use kerf_tests::binaries;

use crate::args::Args;

/// The image's name, which no registry has.
pub const IMAGE: &str = "kerf.local/torch:1";

/// The path of Python in the image.
pub const PYTHON: &str = "/opt/python/bin/python3";

/// Large packages that `torch.compile` does not need.
const LEFT_OUT: [&str; 12] = [
    "jax*",
    "cupy*",
    "onnx*",
    "transformers*",
    "torchvision*",
    "torchaudio*",
    "scipy*",
    "pandas*",
    "pyarrow*",
    "numba*",
    "llvmlite*",
    "sklearn*",
];

/// The root file system, if its bundle was unpacked beside this program.
pub fn base() -> Option<PathBuf> {
    let executable = env::current_exe().ok()?;
    let mut folders = executable.ancestors().skip(1).map(|folder| folder.join("distribution/root"));
    folders.find(|folder| folder.is_dir())
}

/// Builds the image and imports it into the node's containerd.
pub fn import(args: &Args, base: &Path) -> anyhow::Result<()> {
    let parts = args.state.join("torch-image");
    fs::create_dir_all(&parts).context("failed to create the image's folder")?;
    let layer = parts.join("layer.tar");
    let packages = packages(args)?;
    let below = packages.parent().context("packages lie in a folder")?;
    let python =
        below.file_name().context("packages lie in a folder of a Python")?.to_string_lossy().into_owned();
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&layer).args(["--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(LEFT_OUT.map(|name| format!("--exclude=site-packages/{name}")));
    tar.arg(format!("--transform=s,^site-packages,opt/python/lib/{python}/site-packages,"));
    tar.arg("--directory").arg(base).arg(".").arg("--directory").arg(below).arg("site-packages");
    run(&mut tar)?;
    let sum = run(Command::new("sha256sum").arg(&layer))?;
    let sum = sum.split_whitespace().next().context("sha256sum said nothing")?;
    let configuration = format!(
        r#"{{"architecture": "amd64", "os": "linux", "config": {{}}, "rootfs": {{"type": "layers", "diff_ids": ["sha256:{sum}"]}}}}"#
    );
    fs::write(parts.join("config.json"), configuration)
        .context("failed to write the image's configuration")?;
    let manifest =
        format!(r#"[{{"Config": "config.json", "RepoTags": ["{IMAGE}"], "Layers": ["layer.tar"]}}]"#);
    fs::write(parts.join("manifest.json"), manifest).context("failed to write the image's manifest")?;
    let archive = args.state.join("torch-image.tar");
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&archive).arg("--directory").arg(&parts);
    run(tar.args(["config.json", "manifest.json", "layer.tar"]))?;
    fs::remove_dir_all(&parts).context("failed to remove the image's folder")?;
    let mut ctr = Command::new(binaries::node_tool("ctr")?);
    ctr.arg("--address").arg(containerd_socket(&args.places()));
    run(ctr.args(["--namespace=k8s.io", "images", "import"]).arg(&archive))?;
    fs::remove_file(&archive).context("failed to remove the image's archive")
}

fn packages(args: &Args) -> anyhow::Result<PathBuf> {
    let program = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])";
    let reported = run(Command::new(&args.python).args(["-c", program]))?;
    let torch = PathBuf::from(reported.trim());
    torch
        .parent()
        .map(Path::to_owned)
        .with_context(|| format!("{} has no PyTorch: {reported:?}", args.python.display()))
}

/// Runs a program of the machine, and returns its standard output.
fn run(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("failed to run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", said.trim());
    String::from_utf8(output.stdout).with_context(|| format!("{name} prints no text"))
}
