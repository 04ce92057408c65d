//! The part of GPU Operator that a test without its images has: the CRD of `ClusterPolicy`, from the
//! operator's Go module.

use anyhow::{Context as _, ensure};
use std::path::PathBuf;

use crate::openapi::crds;

const CRD: &str = "nvidia.com_clusterpolicies.yaml";

/// The CRD of `ClusterPolicy`, as YAML.
pub fn cluster_policy_crd() -> anyhow::Result<String> {
    let versions = crds()?.join("gpu-operator");
    let folders = std::fs::read_dir(&versions)
        .with_context(|| format!("there is no {}: run `cargo xtask tools`", versions.display()))?;
    let paths =
        folders.map(|folder| Ok(folder?.path().join(CRD))).collect::<std::io::Result<Vec<PathBuf>>>()?;
    let found: Vec<&PathBuf> = paths.iter().filter(|path| path.is_file()).collect();
    ensure!(found.len() == 1, "{} has {} versions of {CRD}; leave one", versions.display(), found.len());
    std::fs::read_to_string(found[0]).with_context(|| format!("failed to read {}", found[0].display()))
}
