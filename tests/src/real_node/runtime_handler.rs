//! Handlers of containerd's beside its default, each with files of the machine in every container, and the `RuntimeClass` by
//! which pods ask for one. NVIDIA's container runtime brings the driver so, as GPU Operator sets it up.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{Places, containerd};
use crate::control_plane::ControlPlane;

/// The handler and `RuntimeClass` of NVIDIA's container runtime.
pub const NVIDIA: &str = "nvidia";

/// A handler, which is named as its `RuntimeClass`.
#[derive(Debug, Clone, Default)]
pub struct RuntimeHandler {
    /// Its name.
    pub name: &'static str,
    /// Files and folders of the machine, which are at the same place in the container or at that behind them.
    pub files: Vec<(PathBuf, Option<&'static str>)>,
    /// Whether containers may write into them.
    pub writable: bool,
    /// Variables, as `NAME=value`.
    pub env: Vec<String>,
}

impl RuntimeHandler {
    /// Writes the specification that containerd makes the handler's containers of.
    pub(super) async fn write(&self, places: &Places) -> anyhow::Result<PathBuf> {
        let plain = containerd::ctr(places, &["oci", "spec"]).await?;
        let mut spec: Value =
            serde_json::from_str(&plain).context("failed to parse containerd's specification")?;
        spec["mounts"].as_array_mut().context("a specification has mounts")?.extend(self.mounts());
        spec["process"]["env"] = json!(self.env);
        // To limit a process of another user takes CAP_SYS_RESOURCE, and in a user namespace each is another's.
        spec["process"]["rlimits"] = json!([]);
        let path = places.state().join(format!("runtime-{}.json", self.name));
        fs::write(&path, spec.to_string()).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }

    fn mounts(&self) -> impl Iterator<Item = Value> {
        let access = if self.writable { "rw" } else { "ro" };
        self.files.iter().map(move |(file, inside)| {
            let source = file.display().to_string();
            let destination = inside.unwrap_or(&source);
            json!({"destination": destination, "source": source, "type": "bind", "options": ["rbind", access]})
        })
    }

    /// Makes its `RuntimeClass`.
    pub(super) async fn announce(&self, plane: &ControlPlane) -> anyhow::Result<()> {
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": self.name}, "handler": self.name,
        });
        plane.apply(&class.to_string()).await.map(drop)
    }
}
