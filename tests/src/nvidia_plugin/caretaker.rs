//! Does for NVIDIA's pods of a node what the kubelet, node feature discovery and the `DaemonSet` controller
//! do: it fills the ConfigMap's volume, sets the labels that GPU feature discovery found, and runs the MPS
//! daemon if it is needed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::pod::{Containers, NvidiaPod, RunningPod};
use super::root::NodeFolder;
use super::spec::StaticNodeSpec;
use crate::kubelet::AtomicFolder;

/// How often the ConfigMap is read. It is about a minute on a real node, which would make tests slow.
const CONFIG_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Caretaker {
    pub spec: Arc<StaticNodeSpec>,
    pub folder: NodeFolder,
    pub client: Client,
    pub kubeconfig: PathBuf,
    pub containers: Containers,
    pub layouts: AtomicFolder,
}

#[derive(Default)]
struct Done {
    /// Whether the ConfigMap's volume has content.
    shows_layouts: bool,
    /// The labels that were found and set on the node.
    labels: BTreeMap<String, String>,
    /// NVIDIA's pods without the MPS daemon's, which ends last.
    pods: Vec<RunningPod>,
    mps: Option<RunningPod>,
}

impl Caretaker {
    /// Works until `stop` is cancelled, then ends NVIDIA's pods.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut done = Done::default();
        loop {
            if let Err(error) = self.pass(&mut done).await {
                tracing::debug!(node = self.spec.name, %error, "a pass over a static node failed");
            }
            tokio::select! {
                () = tokio::time::sleep(CONFIG_INTERVAL) => {}
                () = stop.cancelled() => break,
            }
        }
        for pod in done.pods.into_iter().chain(done.mps) {
            pod.end().await;
        }
    }

    async fn pass(&mut self, done: &mut Done) -> anyhow::Result<()> {
        self.show_layouts(done).await?;
        if done.shows_layouts && done.pods.is_empty() {
            for pod in [NvidiaPod::Discovery, NvidiaPod::Plugin] {
                done.pods.push(self.start(pod)?);
            }
        }
        self.label(done).await?;
        self.choose_mps(done).await
    }

    fn start(&self, pod: NvidiaPod) -> anyhow::Result<RunningPod> {
        RunningPod::start(pod, &self.folder, &self.spec, &self.kubeconfig, Arc::clone(&self.containers))
    }

    /// Updates the ConfigMap's volume. As with the kubelet, a deleted ConfigMap leaves the volume as it was.
    async fn show_layouts(&mut self, done: &mut Done) -> anyhow::Result<()> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.spec.namespace);
        let Some(map) = maps.get_opt(&self.spec.config_map).await? else { return Ok(()) };
        let files = map.data.unwrap_or_default();
        self.layouts.show(files.into_iter().map(|(key, text)| (key, text.into_bytes())).collect())?;
        done.shows_layouts = true;
        Ok(())
    }

    /// Sets the labels that were found and removes those that no longer are, as node feature discovery does.
    async fn label(&self, done: &mut Done) -> anyhow::Result<()> {
        let found = std::fs::read_to_string(self.folder.dir.join("features/gfd")).unwrap_or_default();
        let found: BTreeMap<String, String> = found
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        if found == done.labels {
            return Ok(());
        }
        let gone = done.labels.keys().filter(|name| !found.contains_key(*name));
        let gone = gone.map(|name| (name.clone(), Value::Null));
        let set = found.iter().map(|(name, value)| (name.clone(), json!(value)));
        let labels: serde_json::Map<String, Value> = set.chain(gone).collect();
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        self.nodes().patch(&self.spec.name, &PatchParams::default(), &patch).await?;
        done.labels = found;
        Ok(())
    }

    async fn choose_mps(&self, done: &mut Done) -> anyhow::Result<()> {
        let node = self.nodes().get(&self.spec.name).await?;
        let labels = node.metadata.labels.unwrap_or_default();
        let wanted = labels.get(super::MPS_CAPABLE_LABEL).is_some_and(|value| value == "true");
        if wanted && done.mps.is_none() {
            done.mps = Some(self.start(NvidiaPod::MpsDaemon)?);
        }
        if !wanted && let Some(pod) = done.mps.take() {
            pod.end().await;
        }
        Ok(())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }
}
