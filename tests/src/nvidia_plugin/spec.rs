//! The settings of a static node in a test.

use std::collections::BTreeMap;
use std::time::Duration;

use kerf_nvml_mock::{MigMode, MockConfig, Model};

/// A node that NVIDIA's device plugin serves. Delays are shorter than on a real node; [`super`] lists the
/// real ones.
#[derive(Debug, Clone)]
pub struct StaticNodeSpec {
    /// Its name. It must be short, because the path of a socket in a folder of this name is limited.
    pub name: String,
    pub gpus: MockConfig,
    /// The MIG instances on each of them, by index and profile, as NVIDIA's MIG manager would have created
    /// them.
    pub instances: Vec<(u32, &'static str)>,
    /// Labels of the node from the beginning.
    pub labels: BTreeMap<String, String>,
    /// Namespace of the ConfigMap and of NVIDIA's pods.
    pub namespace: String,
    /// The ConfigMap with the layouts. NVIDIA's programs start only after it exists, as containers wait for a
    /// missing volume.
    pub config_map: String,
    /// `migStrategy` of the chart. The programs get it as a variable, which overrides the layout's.
    pub mig_strategy: Option<String>,
    /// The process name of the MPS daemon for its config-manager, as in GPU Operator's `DaemonSet`. The chart
    /// uses `/usr/bin/mps-control-daemon`, which matches no process.
    pub mps_daemon_is_called: &'static str,
    /// How often the kubelet writes device counts to the node's status. It is 10 s on a real node.
    pub status_period: Duration,
    /// Whether containers' commands run as processes.
    pub run_commands: bool,
}

impl StaticNodeSpec {
    /// A node with `count` GPUs of a model, with MIG mode off.
    #[must_use]
    pub fn new(name: &str, model: Model, count: u32) -> Self {
        Self {
            name: name.to_owned(),
            gpus: MockConfig::new().seed(name).gpus(model, count, MigMode::Disabled),
            instances: Vec::new(),
            labels: BTreeMap::new(),
            namespace: "gpu-operator".to_owned(),
            config_map: "kerf-device-plugin".to_owned(),
            mig_strategy: None,
            mps_daemon_is_called: "mps-control-daemon",
            status_period: Duration::from_millis(200),
            run_commands: false,
        }
    }

    /// Puts its GPUs into MIG mode with these instances, by GPU and profile.
    #[must_use]
    pub fn cut(mut self, instances: &[(u32, &'static str)]) -> Self {
        self.gpus.gpus.iter_mut().for_each(|group| group.mig_enabled = true);
        self.instances = instances.to_vec();
        self
    }

    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    #[must_use]
    pub fn layout(self, key: &str) -> Self {
        self.label(super::CONFIG_LABEL, key)
    }
}
