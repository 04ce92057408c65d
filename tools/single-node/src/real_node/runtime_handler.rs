//! Handlers of containerd beside its default, and the `RuntimeClass`es by which pods select them. Each adds
//! files of the machine to every container. NVIDIA's container runtime brings the driver this way, as GPU
//! Operator configures it.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{Places, containerd};
use kerf_tests::control_plane::ControlPlane;

/// The handler and `RuntimeClass` of NVIDIA's container runtime.
pub const NVIDIA: &str = "nvidia";

/// A handler. Its `RuntimeClass` has the same name.
#[derive(Debug, Clone, Default)]
pub struct RuntimeHandler {
    pub name: &'static str,
    /// Files and folders of the machine, each with its path in the container; `None` for the same path.
    pub files: Vec<(PathBuf, Option<&'static str>)>,
    /// Folders among them that are empty and writable in the container.
    pub hidden: Vec<&'static str>,
    /// Whether containers may write into the files.
    pub writable: bool,
    /// Environment variables, each as `NAME=value`.
    pub env: Vec<String>,
}

impl RuntimeHandler {
    /// Writes the base specification that containerd uses for the handler's containers.
    pub(super) async fn write(&self, places: &Places) -> anyhow::Result<PathBuf> {
        let plain = containerd::ctr(places, &["oci", "spec"]).await?;
        let mut spec: Value =
            serde_json::from_str(&plain).context("failed to parse containerd's specification")?;
        spec["mounts"].as_array_mut().context("a specification has mounts")?.extend(self.mounts());
        spec["process"]["env"] = json!(self.env);
        // The limits are removed, because setting those of another user's process takes CAP_SYS_RESOURCE, and in a user
        // namespace every process is another user's.
        spec["process"]["rlimits"] = json!([]);
        let path = places.state().join(format!("runtime-{}.json", self.name));
        fs::write(&path, spec.to_string()).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }

    fn mounts(&self) -> impl Iterator<Item = Value> {
        let access = if self.writable { "rw" } else { "ro" };
        let files = self.files.iter().map(move |(file, inside)| {
            let source = file.display().to_string();
            let destination = inside.unwrap_or(&source);
            json!({"destination": destination, "source": source, "type": "bind", "options": ["rbind", access]})
        });
        let hidden = self.hidden.iter().map(|folder| {
            json!({"destination": folder, "source": "tmpfs", "type": "tmpfs", "options": ["nosuid", "nodev", "size=1m"]})
        });
        files.chain(hidden)
    }

    pub(super) async fn announce(&self, plane: &ControlPlane) -> anyhow::Result<()> {
        let class = json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
            "metadata": {"name": self.name}, "handler": self.name,
        });
        plane.apply(&class.to_string()).await.map(drop)
    }
}
