//! What a test may choose about its control plane.

use std::net::Ipv4Addr;
use std::path::PathBuf;

/// The addresses of Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAddresses {
    /// The range, as `10.96.0.0/24`.
    pub range: String,
    /// Its first, which is the Service `kubernetes`'s.
    pub first: Ipv4Addr,
}

/// How to start a control plane. The default is everything on, as a cluster has it.
#[derive(Debug, Clone)]
pub struct ControlPlaneOptions {
    /// Run kube-controller-manager (Deployments, Jobs, garbage collection, namespaces' ends, service accounts), without
    /// its node controllers. Without it pods need no service account, and a start takes half the time.
    pub controller_manager: bool,
    /// Run a kube-scheduler named `kube-scheduler`.
    pub scheduler: bool,
    /// A `KubeSchedulerConfiguration` for it; see [`super::ControlPlane::start_scheduler`] for what is filled in.
    pub scheduler_configuration: Option<PathBuf>,
    /// API Priority and Fairness. Off for measurements: its queues would be what is measured.
    pub priority_and_fairness: bool,
    /// The addresses of Services; `None` for some of the loopback's, which pods that are processes reach.
    pub services: Option<ServiceAddresses>,
    /// More flags for kube-apiserver; the last of equal ones wins.
    pub apiserver_flags: Vec<String>,
    /// More flags for kube-controller-manager.
    pub controller_manager_flags: Vec<String>,
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
            controller_manager_flags: Vec::new(),
        }
    }
}

impl ControlPlaneOptions {
    /// The quickest start: API server and default scheduler.
    #[must_use]
    pub fn without_controller_manager() -> Self {
        Self { controller_manager: false, ..Self::default() }
    }
}
