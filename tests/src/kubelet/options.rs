//! The settings of a stand-in kubelet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use kerf_runtime::tls::Material;

use super::images::Images;

/// The real kubelet's default of `nodeStatusUpdateFrequency`.
pub const STATUS_INTERVAL: Duration = Duration::from_secs(10);

/// The real kubelet's delay before it lists pods, while it has not read its node yet (kubernetes v1.36,
/// `WaitForAPIServerSyncPeriod` in `pkg/kubelet/config/apiserver.go`). Plugins that register before it run
/// before pods are admitted again.
pub const PODS_DELAY: Duration = Duration::from_secs(1);

/// How often volumes are updated. The real kubelet takes about a minute, which would slow tests down.
pub const VOLUMES_INTERVAL: Duration = Duration::from_secs(5);

/// Settings for pods with known images, which run as processes in their own file systems. They do not affect
/// other pods.
#[derive(Debug, Clone)]
pub struct PodProcesses {
    /// The images whose containers run as processes.
    pub images: Images,
    /// The API server's address for pods (`KUBERNETES_SERVICE_HOST` and `_PORT`).
    pub api_server: Option<SocketAddr>,
    /// The file that is mounted as `/etc/hosts`. It replaces the cluster's DNS.
    pub hosts: Option<PathBuf>,
    /// How often Secrets, `ConfigMaps` and tokens in volumes are updated.
    pub volumes_period: Duration,
}

impl Default for PodProcesses {
    fn default() -> Self {
        Self { images: Images::default(), api_server: None, hosts: None, volumes_period: VOLUMES_INTERVAL }
    }
}

/// Settings of one stand-in kubelet. [`KubeletOptions::new`] has the real kubelet's values.
#[derive(Clone)]
pub struct KubeletOptions {
    /// The node of this kubelet, and the `spec.nodeName` of the pods that it watches.
    pub node_name: String,
    pub client: kube::Client,
    /// Its root folder. Keep it short: sockets are below it, and a socket's path has at most 107 bytes.
    pub dir: PathBuf,
    /// How often device counts are written to the node's status.
    pub status_period: Duration,
    /// The Node object to create at start; `None` if another component creates it.
    pub register_node: Option<NodeTemplate>,
    /// Whether containers' commands run as local processes. Otherwise containers only count as running.
    pub run_commands: bool,
    /// The containers that run as processes because of their images, independent of `run_commands`.
    pub processes: PodProcesses,
    /// The certificates for serving containers' logs (`kubectl logs`) to clients of the same authority;
    /// `None` serves none.
    pub serving: Option<Material>,
    /// Whether pod-resources has the real kubelet's rate limit.
    pub limit_pod_resources: bool,
}

impl KubeletOptions {
    /// The real kubelet's behaviour, without creating a Node object and without running commands.
    #[must_use]
    pub fn new(node_name: impl Into<String>, client: kube::Client, dir: impl Into<PathBuf>) -> Self {
        Self {
            node_name: node_name.into(),
            client,
            dir: dir.into(),
            status_period: STATUS_INTERVAL,
            register_node: None,
            run_commands: false,
            processes: PodProcesses::default(),
            serving: None,
            limit_pod_resources: true,
        }
    }
}

#[derive(Debug, Clone)]
pub struct NodeTemplate {
    /// Labels besides hostname, OS and architecture, which are always set.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// `cpu` in capacity and allocatable, as a quantity.
    pub cpu: String,
    /// `memory` in capacity and allocatable, as a quantity.
    pub memory: String,
    /// The largest number of pods on the node.
    pub pods: u32,
}

impl Default for NodeTemplate {
    /// A large GPU server with the usual limit of 110 pods.
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
