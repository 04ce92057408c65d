//! GPU Operator as far as a test without its images has it: the CRD of its `ClusterPolicy`, from the operator's Go module.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::cluster::root;

const MODULE: &str = "github.com/NVIDIA/gpu-operator";
const CRD: &str = "config/crd/bases/nvidia.com_clusterpolicies.yaml";

/// What `go mod download -json` says.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Downloaded {
    #[serde(default)]
    dir: PathBuf,
}

/// The CRD of `ClusterPolicy`, as `kubectl apply` takes it.
pub fn cluster_policy_crd() -> anyhow::Result<String> {
    let wrapper = root().join("tests/tools/gpu-operator");
    let go_mod = std::fs::read_to_string(wrapper.join("go.mod")).context("failed to read go.mod")?;
    let pinned = go_mod.lines().find_map(|line| line.strip_prefix("require ")?.strip_prefix(MODULE));
    let version = pinned.context("go.mod does not require GPU Operator")?.trim();
    let module = format!("{MODULE}@{version}");
    let output =
        Command::new("go").args(["mod", "download", "-json", &module]).current_dir(&wrapper).output();
    let output = output.context("failed to run go, which builds the control plane too")?;
    // Its messages name the place that modules come from, which is no matter of a test's log.
    ensure!(output.status.success(), "go mod download {module} failed; run it in {}", wrapper.display());
    let downloaded: Downloaded =
        serde_json::from_slice(&output.stdout).context("failed to read go's answer")?;
    let path = downloaded.dir.join(CRD);
    std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
}
