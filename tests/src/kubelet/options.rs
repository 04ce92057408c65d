//! What a test sets on a stand-in kubelet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use kerf_runtime::tls::Material;

use super::images::Images;

/// The real kubelet's `nodeStatusUpdateFrequency`.
pub const STATUS_PERIOD: Duration = Duration::from_secs(10);

/// The real kubelet's pause before it asks for pods, if it does not know its node yet
/// (kubernetes v1.36, `WaitForAPIServerSyncPeriod` in `pkg/kubelet/config/apiserver.go`).
pub const PODS_AFTER: Duration = Duration::from_secs(1);

/// How often volumes are brought up to date: the real kubelet needs about a minute, for which tests would wait.
pub const VOLUMES_PERIOD: Duration = Duration::from_secs(5);

/// Pods that run as processes in file systems of their own: those whose images are known. Others know nothing of this.
#[derive(Debug, Clone)]
pub struct PodProcesses {
    /// What images' names stand for.
    pub images: Images,
    /// What pods are told of the API server (`KUBERNETES_SERVICE_HOST` and `_PORT`).
    pub api_server: Option<SocketAddr>,
    /// What pods have as `/etc/hosts`, which stands in for the cluster's DNS.
    pub hosts: Option<PathBuf>,
    /// How often Secrets, `ConfigMaps` and tokens in volumes are looked at.
    pub volumes_period: Duration,
}

impl Default for PodProcesses {
    fn default() -> Self {
        Self { images: Images::default(), api_server: None, hosts: None, volumes_period: VOLUMES_PERIOD }
    }
}

/// Settings of one stand-in kubelet. [`KubeletOptions::new`] gives the real kubelet's values.
#[derive(Clone)]
pub struct KubeletOptions {
    /// The node this kubelet serves; also the value of `spec.nodeName` that it watches for.
    pub node_name: String,
    /// How it reaches the API server.
    pub client: kube::Client,
    /// Its root folder. Sockets lie below it, so keep it short: a socket's path has 107 bytes at most.
    pub dir: PathBuf,
    /// How often device counts are written to the node's status.
    pub status_period: Duration,
    /// How long after its start the kubelet asks for pods. Plugins that register before find them not yet admitted again.
    pub pods_after: Duration,
    /// How long a `ListAndWatch` message waits before it takes effect.
    pub list_and_watch_delay: Duration,
    /// Creates the Node object at start; `None` leaves the node to somebody else.
    pub register_node: Option<NodeTemplate>,
    /// Runs containers' commands as local processes; otherwise a container is running by being said to.
    pub run_commands: bool,
    /// Which containers run as processes whatever `run_commands` says, by their images.
    pub processes: PodProcesses,
    /// What containers' logs are served with (`kubectl logs`), to clients of the same authority; `None` serves none.
    pub serving: Option<Material>,
    /// Applies the real kubelet's rate limit to pod-resources.
    pub limit_pod_resources: bool,
}

impl KubeletOptions {
    /// The real kubelet's behaviour, no Node object made, no commands run.
    #[must_use]
    pub fn new(node_name: impl Into<String>, client: kube::Client, dir: impl Into<PathBuf>) -> Self {
        Self {
            node_name: node_name.into(),
            client,
            dir: dir.into(),
            status_period: STATUS_PERIOD,
            pods_after: PODS_AFTER,
            list_and_watch_delay: Duration::ZERO,
            register_node: None,
            run_commands: false,
            processes: PodProcesses::default(),
            serving: None,
            limit_pod_resources: true,
        }
    }
}

/// The Node object to create.
#[derive(Debug, Clone)]
pub struct NodeTemplate {
    /// Labels besides hostname, OS and architecture, which are always set.
    pub labels: BTreeMap<String, String>,
    /// Taints of the node.
    pub taints: Vec<Taint>,
    /// `cpu` in capacity and allocatable, as a quantity.
    pub cpu: String,
    /// `memory` in capacity and allocatable, as a quantity.
    pub memory: String,
    /// Most pods that the node takes.
    pub pods: u32,
}

impl Default for NodeTemplate {
    /// A big GPU server with the usual limit of 110 pods.
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            taints: Vec::new(),
            cpu: "128".to_owned(),
            memory: "1Ti".to_owned(),
            pods: 110,
        }
    }
}
