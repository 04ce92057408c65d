//! The handle of a stand-in kubelet that tests use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

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
    /// A socket or its folder cannot be created.
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    LogServer(#[from] LogServerError),
    /// The folder of the containers' logs cannot be created.
    #[error("failed to make the log folder {path}")]
    Logs {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The node's own folders cannot be created.
    #[error("failed to make the folders of a node below {path}")]
    Files {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The API server rejected the Node object.
    #[error("failed to register node {node}")]
    Node {
        node: String,
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
    /// Registers the node if requested, serves the sockets and begins to watch pods.
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

    /// Restarts the kubelet's process, as `systemctl restart kubelet` does: containers keep running, every
    /// socket in the device plugin folder is removed, and names have 0 devices until their plugins register
    /// again.
    pub async fn restart(&self) -> Result<(), KubeletError> {
        self.go_down().await;
        self.come_up().await
    }

    /// Ends the kubelet's process. Containers keep running.
    pub async fn go_down(&self) {
        let Some(mut process) = self.process.lock().await.take() else { return };
        self.core.devices.go_down();
        process.loops.shutdown().await;
        process.servers.stop().await;
        self.core.pods.interrupted();
    }

    /// Starts the kubelet's process again. It does nothing while the process runs.
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

    /// Stops the machine: the kubelet ends, and every container's process is killed. Nothing is written to
    /// the API.
    pub async fn stop(&self) {
        self.go_down().await;
        self.core.halted.cancel();
        self.core.join().await;
    }

    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.core.options.node_name
    }

    /// The folder for plugins' sockets.
    #[must_use]
    pub fn device_plugin_dir(&self) -> PathBuf {
        self.core.paths.device_plugin_dir()
    }

    /// The path on this machine of a path on the node, such as that of a `hostPath`.
    #[must_use]
    pub fn locate(&self, path: &Path) -> PathBuf {
        self.core.files.locate(path)
    }

    /// The socket at which plugins register.
    #[must_use]
    pub fn kubelet_socket(&self) -> PathBuf {
        self.core.paths.registration()
    }

    #[must_use]
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.core.paths.pod_resources()
    }

    /// The log of a container's process, with stdout and stderr.
    #[must_use]
    pub fn container_log(&self, pod: &PodKey, container: &str) -> PathBuf {
        self.core.logs.file(pod, container)
    }

    /// Sets whether the API server holds back the pods from a kubelet that starts later. It lists no pods
    /// meanwhile.
    pub fn hold_pods_back(&self, hold: bool) {
        self.core.holds_pods_back.send_replace(hold);
    }

    /// How often `List` of pod-resources was called.
    #[must_use]
    pub fn list_calls(&self) -> u64 {
        self.core.devices.list_calls()
    }

    #[must_use]
    pub fn observed(&self) -> Observed {
        locked(&self.core.observed).clone()
    }

    #[must_use]
    pub fn admitted(&self) -> u64 {
        locked(&self.core.observed).admitted
    }

    /// The rejected pods so far, in order.
    #[must_use]
    pub fn failed_admissions(&self) -> Vec<FailedAdmission> {
        self.observed().failed_admissions
    }

    /// Pods that run without the device that they requested, because its name was not registered.
    #[must_use]
    pub fn started_without_device(&self) -> Vec<PodKey> {
        self.observed().started_without_device
    }

    /// Devices of the active pods, by pod and resource name. Pods without devices are left out.
    #[must_use]
    pub fn allocations(&self) -> BTreeMap<PodKey, DevicesByResource> {
        let held = self.core.pods.unended().into_iter().map(|pod| {
            let held = self.core.devices.held_by_pod(&pod.uid);
            (pod.key, held)
        });
        held.filter(|(_, devices)| !devices.is_empty()).collect()
    }

    /// Healthy devices by resource name. A known name without any has an empty set.
    #[must_use]
    pub fn healthy_devices(&self) -> DevicesByResource {
        self.core.devices.healthy()
    }

    /// The answer of `Allocate` for a container; `None` without devices.
    #[must_use]
    pub fn grant(&self, pod: &PodKey, container: &str) -> Option<Grant> {
        self.core.devices.grant(&self.core.pods.find(pod)?, container)
    }

    /// Signals every process of a container. Returns false if it does not run as a process here.
    #[must_use]
    pub fn signal(&self, pod: &PodKey, container: &str, signal: Signal) -> bool {
        let states = self.core.pods.find(pod).map(|uid| self.core.pods.states(&uid));
        let process = states.and_then(|states| locked(&states).get(container)?.process);
        process.is_some_and(|process| container::signal_all(process, signal).is_ok())
    }

    /// How often `Allocate` of plugins was called.
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
