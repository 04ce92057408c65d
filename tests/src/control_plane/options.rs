//! The options of a test's control plane.

use std::net::Ipv4Addr;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAddresses {
    /// The range, such as `10.96.0.0/24`.
    pub range: String,
    /// The first address of the range, which belongs to the Service `kubernetes`.
    pub first: Ipv4Addr,
}

/// The default has every program, as a cluster does.
#[derive(Debug, Clone)]
pub struct ControlPlaneOptions {
    /// Run kube-controller-manager (Deployments, Jobs, garbage collection, deletion of namespaces, service
    /// accounts), without its node controllers. Without it pods need no service account, and a start takes
    /// half the time.
    pub controller_manager: bool,
    /// Run a kube-scheduler named `kube-scheduler`.
    pub scheduler: bool,
    /// A `KubeSchedulerConfiguration` for it. [`super::ControlPlane::start_scheduler`] says what is added.
    pub scheduler_configuration: Option<PathBuf>,
    /// API Priority and Fairness. Measurements turn it off, because its queues would dominate them.
    pub priority_and_fairness: bool,
    /// The addresses of Services. `None` chooses loopback addresses, which pods that are processes can reach.
    pub services: Option<ServiceAddresses>,
    /// Additional flags for kube-apiserver. The last one of equal flags wins.
    pub apiserver_flags: Vec<String>,
}

impl Default for ControlPlaneOptions {
    fn default() -> Self {
        Self {
            controller_manager: true,
            scheduler: true,
            scheduler_configuration: None,
            priority_and_fairness: true,
            services: None,
            apiserver_flags: Vec::new(),
        }
    }
}

impl ControlPlaneOptions {
    /// The quickest start: only the API server and the default scheduler.
    #[must_use]
    pub fn without_controller_manager() -> Self {
        Self { controller_manager: false, ..Self::default() }
    }
}
