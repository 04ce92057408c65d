//! The handle that tests hold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;

use super::container;
use super::demand::PodKey;
use super::devices::locked;
use super::grant::Grant;
use super::ledger::DevicesByResource;
use super::log_server::{LogServer, LogServerError};
use super::node;
use super::observed::{FailedAdmission, Observed};
use super::options::KubeletOptions;
use super::parts::Core;
use super::servers::{KubeletServers, SocketError};

/// Why a stand-in kubelet does not start.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A socket or its folder cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The containers' logs cannot be served.
    #[error(transparent)]
    LogServer(#[from] LogServerError),
    /// The folder of the containers' logs cannot be made.
    #[error("failed to make the log folder {path}")]
    Logs {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The node's own folders cannot be made.
    #[error("failed to make the folders of a node below {path}")]
    Files {
        /// The kubelet's folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The API server did not take the Node object.
    #[error("failed to register node {node}")]
    Node {
        /// The node's name.
        node: String,
        /// What the API server said.
        #[source]
        source: kube::Error,
    },
}

/// A kubelet's process: its sockets and loops, which a restart replaces.
struct Process {
    servers: KubeletServers,
    /// Ends the server of the containers' logs when it is dropped.
    _logs: Option<LogServer>,
    loops: JoinSet<()>,
}

/// A running stand-in kubelet. Dropping it kills the pods' processes and leaves the API objects as they are.
pub struct StandInKubelet {
    core: Arc<Core>,
    process: tokio::sync::Mutex<Option<Process>>,
}

impl StandInKubelet {
    /// Registers the node if asked to, serves the sockets and begins to watch for pods.
    pub async fn start(options: KubeletOptions) -> Result<Self, KubeletError> {
        let logs = options.dir.join("logs");
        std::fs::create_dir_all(&logs).map_err(|source| KubeletError::Logs { path: logs, source })?;
        if let Some(template) = &options.register_node {
            let node = options.node_name.clone();
            let registered = node::register(&options.client, &node, template).await;
            registered.map_err(|source| KubeletError::Node { node, source })?;
        }
        let kubelet = Self { core: Arc::new(Core::new(options)), process: tokio::sync::Mutex::new(None) };
        let files = kubelet.core.files.make();
        files.map_err(|source| KubeletError::Files { path: kubelet.core.options.dir.clone(), source })?;
        kubelet.come_up().await?;
        Ok(kubelet)
    }

    /// The kubelet's process starts again, as `systemctl restart kubelet` does it: containers run on, every socket in
    /// the device plugin folder is removed, names are known with 0 devices until their plugins register again.
    pub async fn restart(&self) -> Result<(), KubeletError> {
        self.go_down().await;
        self.come_up().await
    }

    /// The kubelet's process ends and stays away; containers run on.
    pub async fn go_down(&self) {
        let Some(mut process) = self.process.lock().await.take() else { return };
        self.core.devices.go_down();
        process.loops.shutdown().await;
        process.servers.stop().await;
        self.core.pods.interrupted();
    }

    /// The kubelet's process comes back. Does nothing while it is up.
    pub async fn come_up(&self) -> Result<(), KubeletError> {
        let mut process = self.process.lock().await;
        if process.is_some() {
            return Ok(());
        }
        let core = &self.core;
        core.devices.restart(Instant::now());
        let servers = KubeletServers::start(&core.paths, &core.devices, core.options.limit_pod_resources)?;
        let logs = LogServer::start(core).await?;
        let (sender, receiver) = unbounded_channel();
        let mut loops = JoinSet::new();
        let (watching, admitting, ticking) = (Arc::clone(core), Arc::clone(core), Arc::clone(core));
        loops.spawn(async move { watching.watch(sender).await });
        loops.spawn(async move { admitting.admit(receiver).await });
        loops.spawn(async move { node::tick(&ticking).await });
        *process = Some(Process { servers, _logs: logs, loops });
        Ok(())
    }

    /// The machine goes: the kubelet ends, every container's process is killed. Nothing is written to the API.
    pub async fn stop(&self) {
        self.go_down().await;
        self.core.halted.cancel();
        self.core.join().await;
    }

    /// The node's name.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.core.options.node_name
    }

    /// Where plugins put their sockets.
    #[must_use]
    pub fn device_plugin_dir(&self) -> PathBuf {
        self.core.paths.device_plugin_dir()
    }

    /// Where a path of the node, such as that of a `hostPath`, lies on this machine.
    #[must_use]
    pub fn locate(&self, path: &Path) -> PathBuf {
        self.core.files.locate(path)
    }

    /// Where plugins register.
    #[must_use]
    pub fn kubelet_socket(&self) -> PathBuf {
        self.core.paths.registration()
    }

    /// Where pod-resources is served.
    #[must_use]
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.core.paths.pod_resources()
    }

    /// The log of a container's process, stdout and stderr together.
    #[must_use]
    pub fn container_log(&self, pod: &PodKey, container: &str) -> PathBuf {
        self.core.logs.file(pod, container)
    }

    /// From now on a `ListAndWatch` message waits this long before it takes effect.
    pub fn set_list_and_watch_delay(&self, delay: Duration) {
        self.core.devices.set_delay(delay);
    }

    /// Whether the API server tells of no pods yet to a kubelet that is started from now on: it lists none meanwhile.
    pub fn hold_pods_back(&self, hold: bool) {
        self.core.holds_pods_back.send_replace(hold);
    }

    /// How often pod-resources was asked for its list.
    #[must_use]
    pub fn list_calls(&self) -> u64 {
        self.core.devices.list_calls()
    }

    /// All that was seen so far.
    #[must_use]
    pub fn observed(&self) -> Observed {
        locked(&self.core.observed).clone()
    }

    /// Pods admitted so far.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        locked(&self.core.observed).admitted
    }

    /// Pods refused so far, in order.
    #[must_use]
    pub fn failed_admissions(&self) -> Vec<FailedAdmission> {
        self.observed().failed_admissions
    }

    /// Pods that run without the device they asked for, because nobody had registered its name.
    #[must_use]
    pub fn started_without_device(&self) -> Vec<PodKey> {
        self.observed().started_without_device
    }

    /// Devices of the active pods, by pod and resource name; pods without devices are left out.
    #[must_use]
    pub fn allocations(&self) -> BTreeMap<PodKey, DevicesByResource> {
        let held = self.core.pods.unended().into_iter().map(|pod| {
            let held = self.core.devices.held_by_pod(&pod.uid);
            (pod.key, held)
        });
        held.filter(|(_, devices)| !devices.is_empty()).collect()
    }

    /// Healthy devices by resource name; a known name without any has an empty set.
    #[must_use]
    pub fn healthy_devices(&self) -> DevicesByResource {
        self.core.devices.healthy()
    }

    /// What a container got from `Allocate`; None if it got nothing.
    #[must_use]
    pub fn grant(&self, pod: &PodKey, container: &str) -> Option<Grant> {
        self.core.devices.grant(&self.core.pods.find(pod)?, container)
    }

    /// Signals every process of a container. False: it does not run as a process here.
    #[must_use]
    pub fn signal(&self, pod: &PodKey, container: &str, signal: Signal) -> bool {
        let states = self.core.pods.find(pod).map(|uid| self.core.pods.states(&uid));
        let process = states.and_then(|states| locked(&states).get(container)?.process);
        process.is_some_and(|process| container::signal_all(process, signal).is_ok())
    }

    /// How often plugins were asked to allocate.
    #[must_use]
    pub fn allocate_calls(&self) -> u64 {
        self.core.devices.allocate_calls()
    }
}

impl Drop for StandInKubelet {
    fn drop(&mut self) {
        self.core.devices.go_down();
        self.core.halted.cancel();
    }
}
