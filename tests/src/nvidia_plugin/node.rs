//! The handle of a static node that tests use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Node;
use kerf_nvml_mock::{MockControl, MockState};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::account;
use super::caretaker::Caretaker;
use super::container::{Exit, Handle};
use super::layouts;
use super::pod::{Containers, NvidiaPod};
use super::root::NodeFolder;
use super::spec::StaticNodeSpec;
use crate::control_plane::ControlPlane;
use crate::kubelet::{AtomicFolder, KubeletOptions, NodeTemplate, StandInKubelet, locked};
use crate::mps::Files as MpsFiles;

/// Timeout of every wait: NVIDIA's plugin waits 30 s before it retries.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Exit code of a program that got config-manager's SIGHUP before it had a handler. It is restarted, as on a
/// real node.
const TOLD_TOO_EARLY: i32 = 128 + 1;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running static node. [`StaticNode::stop`] ends it in order; dropping it kills everything.
pub struct StaticNode {
    spec: Arc<StaticNodeSpec>,
    folder: NodeFolder,
    client: Client,
    kubelet: StandInKubelet,
    containers: Containers,
    /// Containers that may end without failing the test.
    may_end: Mutex<BTreeSet<String>>,
    stop: CancellationToken,
    caretaker: JoinHandle<()>,
}

impl StaticNode {
    /// Registers the node and starts its kubelet. NVIDIA's programs start once the ConfigMap with the layouts
    /// exists.
    pub async fn start(plane: &ControlPlane, spec: StaticNodeSpec) -> anyhow::Result<Self> {
        let dir: PathBuf = plane.dir().join("n").join(&spec.name);
        let folder = NodeFolder::create(&dir, &spec)?;
        let kubelet = StandInKubelet::start(KubeletOptions {
            status_period: spec.status_period,
            run_commands: spec.run_commands,
            serving: spec.run_commands.then(|| plane.kubelet_serving()).transpose()?,
            register_node: Some(NodeTemplate { labels: spec.labels.clone(), ..NodeTemplate::default() }),
            ..KubeletOptions::new(&spec.name, plane.client(), &dir)
        })
        .await?;
        let kubeconfig = account::kubeconfig(plane).await?;
        let (spec, containers, stop) = (Arc::new(spec), Containers::default(), CancellationToken::new());
        let caretaker = Caretaker {
            spec: Arc::clone(&spec),
            folder: folder.clone(),
            client: plane.client(),
            kubeconfig,
            containers: Arc::clone(&containers),
            layouts: AtomicFolder::make(folder.dir.join("configs"))?,
        };
        let caretaker = tokio::spawn(caretaker.run(stop.clone()));
        let (client, may_end) = (plane.client(), Mutex::default());
        Ok(Self { spec, folder, client, kubelet, containers, may_end, stop, caretaker })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    #[must_use]
    pub fn kubelet(&self) -> &StandInKubelet {
        &self.kubelet
    }

    /// The node's GPUs, as the simulated NVML reports them.
    pub fn gpus(&self) -> anyhow::Result<MockState> {
        self.folder.state()
    }

    /// Sets faults, delays or processes of the node's GPUs.
    pub fn control(&self, control: &MockControl) -> anyhow::Result<()> {
        self.folder.control(control)
    }

    /// Orders and events of the MPS daemon of a resource, such as `gpu`.
    #[must_use]
    pub fn mps(&self, resource: &str) -> MpsFiles {
        MpsFiles::for_target(&self.folder.dir.join("mps/nvidia.com"), resource)
    }

    /// Writes the ConfigMap with the layouts, one for each key.
    pub async fn write_layouts(&self, layouts: &[(&str, &str)]) -> anyhow::Result<()> {
        layouts::write(&self.client, &self.spec.namespace, &self.spec.config_map, layouts).await
    }

    /// The node as it is in the API server.
    pub async fn node(&self) -> anyhow::Result<Node> {
        Ok(Api::<Node>::all(self.client.clone()).get(self.name()).await?)
    }

    /// The node's labels of NVIDIA, without the prefix `nvidia.com/`.
    pub async fn labels(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let labels = self.node().await?.metadata.labels.unwrap_or_default();
        let own = labels
            .into_iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("nvidia.com/")?.to_owned(), value)));
        Ok(own.collect())
    }

    /// The node's allocatable resources of NVIDIA, without the prefix `nvidia.com/`.
    pub async fn allocatable(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let status = self.node().await?.status.unwrap_or_default();
        Ok(of_nvidia(status.allocatable.unwrap_or_default()))
    }

    /// The node's capacity of NVIDIA's resources, without the prefix.
    pub async fn capacity(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let status = self.node().await?.status.unwrap_or_default();
        Ok(of_nvidia(status.capacity.unwrap_or_default()))
    }

    /// Sets or removes a label of the node.
    pub async fn set_label(&self, name: &str, value: Option<&str>) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"labels": {name: value}}}));
        Api::<Node>::all(self.client.clone()).patch(self.name(), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Chooses a layout by its key; `None` removes the choice.
    pub async fn choose(&self, layout: Option<&str>) -> anyhow::Result<()> {
        self.set_label(super::CONFIG_LABEL, layout).await
    }

    /// Waits until the ConfigMap's volume has a layout.
    pub async fn until_layout_is_there(&self, layout: &str) -> anyhow::Result<()> {
        let file = self.folder.dir.join("configs").join(layout);
        self.until(&format!("the volume to show {layout}"), async || {
            if file.exists() { Ok(()) } else { bail!("{} is not there", file.display()) }
        })
        .await
    }

    /// Waits until allocatable has exactly these of NVIDIA's resources, ignoring those that are 0.
    pub async fn until_allocatable(&self, wanted: &[(&str, &str)]) -> anyhow::Result<()> {
        let wanted: BTreeMap<String, String> =
            wanted.iter().map(|(name, count)| ((*name).to_owned(), (*count).to_owned())).collect();
        self.until(&format!("allocatable to be {wanted:?}"), async || {
            let mut there = self.allocatable().await?;
            there.retain(|_, count| count != "0");
            if there == wanted { Ok(()) } else { bail!("it is {there:?}") }
        })
        .await
    }

    /// Polls until `look` succeeds. It fails if a program of NVIDIA ends meanwhile that must not.
    pub async fn until<T>(
        &self,
        what: &str,
        mut look: impl AsyncFnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            self.check()?;
            match look().await {
                Ok(found) => return Ok(found),
                Err(error) if begun.elapsed() > TIMEOUT => {
                    let waited =
                        format!("waited {TIMEOUT:?} for {what} on {}\n{}", self.name(), self.tails());
                    return Err(error.context(waited));
                }
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Allows a container to end from now on.
    pub fn may_end(&self, container: &str) {
        locked(&self.may_end).insert(container.to_owned());
    }

    /// How a container's runs ended so far.
    #[must_use]
    pub fn exits(&self, container: &str) -> Vec<Exit> {
        self.container(container).map(|handle| handle.read(|record| record.exits.clone())).unwrap_or_default()
    }

    /// How often a container was started so far.
    #[must_use]
    pub fn starts(&self, container: &str) -> u32 {
        self.container(container).map(|handle| handle.read(|record| record.starts)).unwrap_or_default()
    }

    /// The whole output of a container so far.
    #[must_use]
    pub fn said(&self, container: &str) -> String {
        self.container(container).map(|handle| handle.said()).unwrap_or_default()
    }

    /// How often the plugin reloaded because of config-manager's signal.
    #[must_use]
    pub fn reloads(&self) -> usize {
        self.said(NvidiaPod::Plugin.program()).matches("Received SIGHUP").count()
    }

    /// Waits until a container prints a text, and returns its whole output.
    pub async fn until_says(&self, container: &str, text: &str) -> anyhow::Result<String> {
        self.until(&format!("{container} to say {text:?}"), async || {
            let said = self.said(container);
            if said.contains(text) { Ok(said) } else { bail!("it has not") }
        })
        .await
    }

    /// Waits for the next end of a container, and allows it to end.
    pub async fn until_exit(&self, container: &str) -> anyhow::Result<Exit> {
        self.may_end(container);
        let before = self.exits(container).len();
        self.until(&format!("{container} to end"), async || {
            self.exits(container).get(before).cloned().context("it runs")
        })
        .await
    }

    /// Kills a container's process, and waits until it runs again.
    pub async fn kill(&self, container: &str) -> anyhow::Result<()> {
        self.may_end(container);
        let handle = self.container(container).context("no such container")?;
        let before = handle.read(|record| record.starts);
        handle.signal(Signal::KILL);
        self.until(&format!("{container} to be started again"), async || {
            let again = handle.read(|record| record.starts > before && record.process.is_some());
            if again { Ok(()) } else { bail!("it is not") }
        })
        .await
    }

    pub fn signal(&self, container: &str, signal: Signal) -> anyhow::Result<()> {
        self.container(container).context("no such container")?.signal(signal);
        Ok(())
    }

    /// Fails if a container has ended that must not.
    pub fn check(&self) -> anyhow::Result<()> {
        let may_end = locked(&self.may_end).clone();
        for (name, handle) in locked(&self.containers).iter() {
            if may_end.contains(name) {
                continue;
            }
            let exit =
                handle.read(|record| record.exits.iter().find(|exit| exit.code != TOLD_TOO_EARLY).cloned());
            if let Some(exit) = exit {
                bail!("{name} on {} ended with code {}:\n{}", self.name(), exit.code, exit.log);
            }
        }
        Ok(())
    }

    /// Ends NVIDIA's programs before the kubelet, because they are connected to it.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.caretaker.await.context("a static node's caretaker failed")?;
        self.kubelet.stop().await;
        Ok(())
    }

    fn container(&self, name: &str) -> Option<Handle> {
        locked(&self.containers).get(name).cloned()
    }

    /// The end of each container's output.
    fn tails(&self) -> String {
        let mut text = String::new();
        for (name, handle) in locked(&self.containers).iter() {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "--- {name}:\n{}", handle.tail());
        }
        text
    }
}

fn of_nvidia(
    resources: BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
) -> BTreeMap<String, String> {
    let own = resources
        .into_iter()
        .filter_map(|(name, quantity)| Some((name.strip_prefix("nvidia.com/")?.to_owned(), quantity.0)));
    own.collect()
}
