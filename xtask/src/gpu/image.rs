//! Writes the only container image of a machine without a registry, in Docker's format. It has a program that waits,
//! and links into a `/usr` that pods mount from the machine, so that the image needs no programs of its own.

use std::env::consts;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::bundle;

/// The image's name in pods (`kerf_tests::kubelet_rules::IMAGE`).
const NAME: &str = "kerf.local/pause:1";

const LINKS: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

pub fn write(pause: &Path, folder: &Path, image: &Path) -> anyhow::Result<()> {
    let root = folder.join("root");
    fs::create_dir_all(&root).with_context(|| format!("failed to create {}", root.display()))?;
    fs::copy(pause, root.join("pause")).context("failed to copy pause")?;
    for link in LINKS {
        symlink(format!("usr/{link}"), root.join(link)).context("failed to make a link for the image")?;
    }
    let parts = folder.join("parts");
    fs::create_dir_all(&parts).context("failed to create the image's folder")?;
    let layer = parts.join("layer.tar");
    bundle::archive(&root, &layer, None)?;
    let documents = [("config.json", configuration(&checksum(&layer)?)), ("manifest.json", manifest())];
    for (name, text) in documents {
        fs::write(parts.join(name), text).with_context(|| format!("failed to write {name}"))?;
    }
    bundle::archive(&parts, image, None)
}

fn configuration(layer: &str) -> String {
    let arch = if consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    format!(
        r#"{{"architecture": "{arch}", "os": "linux", "config": {{"Entrypoint": ["/pause"]}}, "rootfs": {{"type": "layers", "diff_ids": ["sha256:{layer}"]}}}}"#
    )
}

fn manifest() -> String {
    format!(r#"[{{"Config": "config.json", "RepoTags": ["{NAME}"], "Layers": ["layer.tar"]}}]"#)
}

/// The SHA-256 of a file, by the system's own program, because one hash is not worth a dependency.
fn checksum(file: &Path) -> anyhow::Result<String> {
    let output = Command::new("sha256sum").arg(file).output().context("failed to run sha256sum")?;
    ensure!(output.status.success(), "sha256sum failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().next().map(str::to_owned).context("sha256sum said nothing")
}
