//! A static node: NVIDIA's device plugin, or a stand-in for it, serves the devices of a stand-in kubelet. No
//! agent of kerf runs there.

use crate::control_plane::ControlPlane;
use crate::kubelet::{KubeletOptions, NodeTemplate, StandInKubelet};
use crate::kubelet_rules::plugin::{FakePlugin, register};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The version of the device plugin API.
const VERSION: &str = "v1beta1";

/// How often the kubelet writes device counts to the node's status.
const STATUS_INTERVAL: Duration = Duration::from_millis(200);

/// A static node. Dropping it stops its kubelet.
pub struct StaticServer {
    name: String,
    kubelet: StandInKubelet,
    plugins: BTreeMap<String, Arc<FakePlugin>>,
}

impl StaticServer {
    /// Registers a node with these labels and starts its kubelet. Device plugins register at
    /// [`StandInKubelet::kubelet_socket`].
    pub async fn start(
        plane: &ControlPlane,
        name: &str,
        labels: impl IntoIterator<Item = (String, String)>,
    ) -> anyhow::Result<Self> {
        let dir: PathBuf = plane.dir().join("n").join(name);
        std::fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
        let labels = labels.into_iter().collect();
        let kubelet = StandInKubelet::start(KubeletOptions {
            status_period: STATUS_INTERVAL,
            register_node: Some(NodeTemplate { labels, ..NodeTemplate::default() }),
            ..KubeletOptions::new(name, plane.client(), &dir)
        });
        Ok(Self { name: name.to_owned(), kubelet: kubelet.await?, plugins: BTreeMap::new() })
    }

    /// Serves `count` devices of a name by a stand-in for NVIDIA's device plugin. A later call for the same
    /// name changes the count.
    pub async fn serve(&mut self, resource: &str, count: u32) -> anyhow::Result<()> {
        let ids: Vec<String> = (0..count).map(|number| format!("GPU-{}::{number}", self.name)).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        if let Some(plugin) = self.plugins.get(resource) {
            plugin.tell(&ids, &[]);
            return Ok(());
        }
        let socket = format!("nvidia-{}.sock", self.plugins.len());
        let plugin = FakePlugin::new(&ids).serve(&self.kubelet.device_plugin_dir().join(&socket))?;
        let registered = register(self.kubelet.kubelet_socket(), &socket, resource, VERSION).await;
        registered.with_context(|| format!("{}: {resource} is not registered", self.name))?;
        self.plugins.insert(resource.to_owned(), plugin);
        Ok(())
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn kubelet(&self) -> &StandInKubelet {
        &self.kubelet
    }

    /// How many devices of a name pods hold according to the kubelet.
    #[must_use]
    pub fn held(&self, resource: &str) -> usize {
        let pods = self.kubelet.allocations();
        pods.values().filter_map(|devices| devices.get(resource)).map(std::collections::BTreeSet::len).sum()
    }
}
