//! A stand-in for NVIDIA's container runtime: one of containerd's that brings the driver into each container of its
//! `RuntimeClass`, as GPU Operator sets it up.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{Places, containerd};
use crate::control_plane::ControlPlane;

/// The name of the runtime and of its `RuntimeClass`.
pub const RUNTIME_CLASS: &str = "nvidia";

/// What a container gets of the driver.
#[derive(Debug, Clone, Default)]
pub struct Driver {
    /// Folders of the machine, which are at the same place in the container.
    pub folders: Vec<PathBuf>,
    /// Whether containers may write into them.
    pub writable: bool,
    /// Variables, as `NAME=value`.
    pub env: Vec<String>,
}

impl Driver {
    /// Writes the specification that the runtime makes containers of.
    pub(super) async fn write(&self, places: &Places) -> anyhow::Result<PathBuf> {
        let plain = containerd::ctr(places, &["oci", "spec"]).await?;
        let mut spec: Value =
            serde_json::from_str(&plain).context("failed to parse containerd's specification")?;
        let access = if self.writable { "rw" } else { "ro" };
        let mounts = self.folders.iter().map(|folder| {
            let path = folder.display().to_string();
            json!({"destination": path, "source": path, "type": "bind", "options": ["rbind", access]})
        });
        spec["mounts"].as_array_mut().context("a specification has mounts")?.extend(mounts);
        spec["process"]["env"] = json!(self.env);
        let path = places.state().join("driver-runtime.json");
        fs::write(&path, spec.to_string()).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }
}

/// Makes the `RuntimeClass`.
pub(super) async fn announce(plane: &ControlPlane) -> anyhow::Result<()> {
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": RUNTIME_CLASS}, "handler": RUNTIME_CLASS,
    });
    plane.apply(&class.to_string()).await.map(drop)
}
