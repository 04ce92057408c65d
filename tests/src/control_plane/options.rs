//! What a test may choose about its control plane.

use std::path::PathBuf;

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
