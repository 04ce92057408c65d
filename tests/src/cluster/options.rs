//! The options of a test cluster and of its nodes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use kerf_nvml_mock::{MigMode, MockConfig, Model};

use crate::control_plane::ControlPlaneOptions;

pub struct ClusterOptions {
    pub control_plane: ControlPlaneOptions,
    pub nodes: Vec<NodeSpec>,
    /// The policy file or folder, which is copied; `None` for the shipped default.
    pub policy: Option<PathBuf>,
    /// Additional flags for the extender.
    pub extender_flags: Vec<String>,
    /// Whether agents dial the extender at two addresses, for [two
    /// replicas](crate::leaders::Leaders::take_over) that replace it.
    pub two_extenders: bool,
    /// Whether agents are simulated. The extender then accepts agents without authentication.
    pub simulated_agents: bool,
}

#[derive(Debug, Clone)]
pub struct NodeSpec {
    /// The node's name. It must be short, because the path of a socket in a folder of this name is limited.
    pub name: String,
    pub gpus: MockConfig,
    /// Whether containers' commands run as processes.
    pub run_commands: bool,
    /// How often the kubelet writes device counts to the node's status.
    pub status_period: Duration,
    /// Labels besides those that every node has.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Additional flags for its agent.
    pub agent_flags: Vec<String>,
}

impl NodeSpec {
    /// A node with `count` GPUs of a model, in MIG mode if the model supports it.
    #[must_use]
    pub fn new(name: &str, model: Model, count: u32) -> Self {
        let gpus = MockConfig::new().seed(name).gpus(model, count, MigMode::Enabled);
        Self {
            name: name.to_owned(),
            gpus,
            run_commands: false,
            status_period: Duration::from_secs(10),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            agent_flags: Vec::new(),
        }
    }

    #[must_use]
    pub fn without_gpus(name: &str) -> Self {
        Self { gpus: MockConfig::new().seed(name), ..Self::new(name, Model::T4, 0) }
    }

    #[must_use]
    pub fn with_label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds the labels with which GPU Operator and node-feature-discovery mark a node with NVIDIA GPUs,
    /// before any plugin runs.
    #[must_use]
    pub fn with_gpu_operator_labels(self) -> Self {
        self.with_label("feature.node.kubernetes.io/pci-10de.present", "true")
            .with_label("nvidia.com/gpu.present", "true")
            .with_label("nvidia.com/gpu.deploy.driver", "pre-installed")
    }

    /// Adds GPU Operator's default labels for GPUs with MIG: its MIG manager, and a configuration without MIG
    /// instances.
    #[must_use]
    pub fn with_mig_manager_labels(self) -> Self {
        self.with_label("nvidia.com/gpu.deploy.mig-manager", "true")
            .with_label("nvidia.com/mig.config", "all-disabled")
    }

    /// Adds the taint that keeps pods without GPUs away.
    #[must_use]
    pub fn with_gpu_taint(mut self) -> Self {
        let (key, effect) = ("nvidia.com/gpu".to_owned(), "NoSchedule".to_owned());
        self.taints.push(Taint { key, effect, value: Some("present".to_owned()), time_added: None });
        self
    }

    /// The node as GPU Operator labels and taints it, after an admin has removed NVIDIA's device plugin from
    /// it.
    #[must_use]
    pub fn left_to_kerf(self) -> Self {
        let as_the_operator_has_it = self.with_gpu_operator_labels().with_gpu_taint();
        as_the_operator_has_it.with_label("nvidia.com/gpu.deploy.device-plugin", "false")
    }

    /// The node's containers run as processes.
    #[must_use]
    pub fn running_commands(self) -> Self {
        Self { run_commands: true, ..self }
    }
}

impl ClusterOptions {
    /// A cluster of these nodes with all programs and the shipped default policy.
    #[must_use]
    pub fn new(nodes: Vec<NodeSpec>) -> Self {
        Self {
            control_plane: ControlPlaneOptions::default(),
            nodes,
            policy: None,
            // As in deploy/, the name survives a restart, so that the extender can use its own Lease at once.
            extender_flags: vec!["--identity=kerf-extender-0".to_owned()],
            two_extenders: false,
            simulated_agents: false,
        }
    }

    /// The same without a controller manager: no test that creates only pods needs one, and the start takes half the
    /// time.
    #[must_use]
    pub fn without_controller_manager(nodes: Vec<NodeSpec>) -> Self {
        Self { control_plane: ControlPlaneOptions::without_controller_manager(), ..Self::new(nodes) }
    }

    /// A cluster without kubelets, whose nodes are objects with [simulated
    /// agents](super::Cluster::simulate_agents).
    #[must_use]
    pub fn of_simulated_nodes() -> Self {
        let mut options = Self::without_controller_manager(Vec::new());
        options.control_plane.priority_and_fairness = false;
        Self { simulated_agents: true, ..options }
    }

    /// The nodes of the demo: two H100, one A100-40GB, one T4.
    #[must_use]
    pub fn demo_nodes() -> Vec<NodeSpec> {
        vec![
            NodeSpec::new("h100", Model::H100, 2),
            NodeSpec::new("a100", Model::A100Gb40, 1),
            NodeSpec::new("t4", Model::T4, 1),
        ]
    }
}
