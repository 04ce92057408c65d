//! The node's policies: the shipped one for pods, and one for the node's GPUs, which `bench` changes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use kerf_tests::cluster::root;

use crate::args::Args;

/// The file of the node's own policy. It sorts before the shipped one.
pub const OWN: &str = "10-node.yaml";

/// Creates the policy folder that kerf's programs read.
pub fn folder(args: &Args) -> anyhow::Result<PathBuf> {
    let folder = args.state.join("policies");
    fs::create_dir_all(&folder).context("failed to create the policies' folder")?;
    let shipped = root().join("policies/default.yaml");
    fs::copy(&shipped, folder.join("90-default.yaml"))
        .with_context(|| format!("failed to copy {}", shipped.display()))?;
    write(args, &folder, true)?;
    Ok(folder)
}

/// Writes the node's policy into the folder of a running cluster.
pub fn write(args: &Args, folder: &Path, limits_compute: bool) -> anyhow::Result<()> {
    // Renaming the complete file makes sure that no reader sees half of it.
    let unfinished = folder.join("unfinished");
    fs::write(&unfinished, text(args, limits_compute)).context("failed to write the node's policy")?;
    fs::rename(unfinished, folder.join(OWN)).context("failed to write the node's policy")
}

/// The node's policy. It allows every kind, MIG only if simulated GPUs are in MIG mode. It switches no mode
/// of a real GPU: `modeChange` defaults to `never`, and `exclusive` is false; simulated GPUs are exclusive,
/// which is the default. A pod that uses more memory than it has is evicted. `limits_compute` sets whether a
/// share's compute is limited.
pub fn text(args: &Args, limits_compute: bool) -> String {
    let (name, limit) = (&args.name, if limits_compute { "share" } else { "none" });
    let exclusive = args.simulated;
    let mig = if args.mig > 0 { "mig, " } else { "" };
    format!(
        "apiVersion: kerf.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: no-mode-is-switched}}\nspec:\n  match: \
         {{names: [{name}]}}\n  overUse: evict\n  gpus:\n  - kinds: [{mig}mps, time-slicing, whole]\n    mps: {{exclusive: {exclusive}, \
         computeLimit: {limit}}}\n"
    )
}
