//! The environment of one case: its own resource name, plugins for it, and the kubelet's state of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kerf_node_agent::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use kerf_node_agent::kubelet_api::podresources::{AllocatableResourcesRequest, ListPodResourcesRequest};
use kerf_node_agent::kubelet_api::{API_VERSION, KUBELET_SOCKET};
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::cluster::wait;
use crate::kubelet::locked;

use super::JudgedKubelet;
use super::plugin::{FakePlugin, channel, register};

/// Timeout for steps that take the kubelet moments.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// Device IDs of one resource name, by container.
pub(super) type Held = BTreeMap<String, BTreeSet<String>>;

/// What a case uses. No other case has its resource name or its pods' names.
pub(super) struct Scene<'a> {
    pub(super) kubelet: &'a dyn JudgedKubelet,
    pub(super) resource: String,
    /// Prefix of its pods' names.
    pub(super) prefix: String,
    /// A folder that its containers mount at the same path.
    pub(super) folder: TempDir,
    sockets: AtomicU32,
    plugins: Mutex<Vec<Arc<FakePlugin>>>,
    notes: Mutex<Vec<String>>,
}

impl<'a> Scene<'a> {
    /// A scene with a unique number.
    pub(super) fn new(kubelet: &'a dyn JudgedKubelet, number: usize) -> anyhow::Result<Self> {
        // The kubelet may still have names of an earlier run, so the process id makes them unique.
        let prefix = format!("case-{}-{number}", std::process::id());
        Ok(Self {
            kubelet,
            resource: format!("rules.kerf.dev/{prefix}"),
            prefix,
            folder: tempfile::tempdir().context("failed to make a case's folder")?,
            sockets: AtomicU32::new(0),
            plugins: Mutex::default(),
            notes: Mutex::default(),
        })
    }

    /// Records a text for the reader that does not decide the rule, such as a duration.
    pub(super) fn note(&self, text: String) {
        locked(&self.notes).push(text);
    }

    pub(super) fn notes(&self) -> Vec<String> {
        locked(&self.notes).clone()
    }

    /// A new socket name for a plugin.
    pub(super) fn socket(&self) -> String {
        format!("{}-{}.sock", self.prefix, self.sockets.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn path(&self, socket: &str) -> PathBuf {
        self.kubelet.device_plugins().join(socket)
    }

    /// Serves a plugin without registering it.
    pub(super) fn serve(&self, plugin: FakePlugin, socket: &str) -> anyhow::Result<Arc<FakePlugin>> {
        let plugin = plugin.serve(&self.path(socket)).context("failed to serve a plugin")?;
        locked(&self.plugins).push(Arc::clone(&plugin));
        Ok(plugin)
    }

    /// Registers the plugin on a socket under this case's name.
    pub(super) async fn register(&self, socket: &str) -> Result<(), Status> {
        self.register_as(socket, &self.resource, API_VERSION).await
    }

    /// Registers a plugin with any name and API version.
    pub(super) async fn register_as(&self, socket: &str, name: &str, version: &str) -> Result<(), Status> {
        register(self.path(KUBELET_SOCKET), socket, name, version).await
    }

    /// Serves and registers a plugin with healthy devices, and waits until the kubelet has them.
    pub(super) async fn plug(&self, plugin: FakePlugin) -> anyhow::Result<Arc<FakePlugin>> {
        let socket = self.socket();
        let ids: Vec<String> = plugin.seen.borrow().iter().map(|device| device.id.clone()).collect();
        let plugin = self.serve(plugin, &socket)?;
        self.register(&socket).await.context("the plugin was not registered")?;
        self.acknowledged(&ids).await?;
        Ok(plugin)
    }

    /// Serves and registers a plugin with these devices and default behaviour.
    pub(super) async fn plug_in(&self, healthy: &[&str]) -> anyhow::Result<Arc<FakePlugin>> {
        self.plug(FakePlugin::new(healthy)).await
    }

    async fn lister(&self) -> anyhow::Result<PodResourcesListerClient<Channel>> {
        let channel = channel(self.kubelet.pod_resources()).await.context("pod-resources is not there")?;
        Ok(PodResourcesListerClient::new(channel))
    }

    /// The allocatable devices of this case's name.
    pub(super) async fn allocatable(&self) -> anyhow::Result<BTreeSet<String>> {
        let answer = asked(async || {
            self.lister()
                .await?
                .get_allocatable_resources(AllocatableResourcesRequest {})
                .await
                .map_err(Into::into)
        });
        let answer = answer.await?;
        let devices = answer.into_inner().devices.into_iter();
        let ours = devices.filter(|device| device.resource_name == self.resource);
        Ok(ours.flat_map(|device| device.device_ids).collect())
    }

    /// Waits until exactly these devices are allocatable. Returns how long it took.
    pub(super) async fn acknowledged<S: AsRef<str>>(&self, ids: &[S]) -> anyhow::Result<Duration> {
        let expected: BTreeSet<String> = ids.iter().map(|id| id.as_ref().to_owned()).collect();
        let begun = Instant::now();
        let known = async || Ok(self.allocatable().await? == expected);
        let waited = wait(TIMEOUT, &format!("{expected:?} to be allocatable"), known).await;
        let took = begun.elapsed();
        let seen = self.allocatable().await?;
        waited.with_context(|| format!("{seen:?} are"))?;
        Ok(took)
    }

    /// Waits until no device is allocatable.
    pub(super) async fn nothing_left(&self) -> anyhow::Result<()> {
        self.acknowledged::<&str>(&[]).await.map(drop)
    }

    /// The devices of this case's name that a pod's containers hold according to pod-resources; `None` if the
    /// pod is not listed.
    pub(super) async fn listed(&self, pod: &str) -> anyhow::Result<Option<Held>> {
        let answer = asked(async || Ok(self.lister().await?.list(ListPodResourcesRequest {}).await?));
        let answer = answer.await?.into_inner();
        let name = self.name(pod);
        let found = answer.pod_resources.into_iter().find(|pod| pod.name == name);
        let containers = found.map(|pod| pod.containers);
        Ok(containers.map(|containers| {
            let held = containers.into_iter().map(|container| {
                let ours = container.devices.into_iter().filter(|d| d.resource_name == self.resource);
                (container.name, ours.flat_map(|device| device.device_ids).collect())
            });
            held.collect()
        }))
    }

    /// The devices that the container `main` of a pod holds.
    pub(super) async fn held(&self, pod: &str) -> anyhow::Result<BTreeSet<String>> {
        let mut held = self.listed(pod).await?.with_context(|| format!("{pod} is not listed"))?;
        held.remove("main").with_context(|| format!("{pod} is listed without its container"))
    }

    /// Fails unless a pod's container `main` holds exactly these devices.
    pub(super) async fn holds(&self, pod: &str, ids: &[&str]) -> anyhow::Result<()> {
        let held = self.held(pod).await?;
        ensure!(held.iter().eq(ids), "{pod} holds {held:?}, not {ids:?}");
        Ok(())
    }

    /// Ends the case's pods and plugins.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        let cleared = self.end_all().await;
        for plugin in locked(&self.plugins).iter() {
            plugin.closed.cancel();
        }
        cleared
    }
}

/// Retries a call that the kubelet's rate limit rejects, because cases that run side by side share the limit.
async fn asked<T>(ask: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        let answer = ask().await;
        let limited = |error: &anyhow::Error| {
            error.downcast_ref::<Status>().is_some_and(|status| status.code() == Code::ResourceExhausted)
        };
        if begun.elapsed() > TIMEOUT || !answer.as_ref().is_err_and(limited) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
