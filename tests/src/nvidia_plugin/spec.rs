//! What a test says of a static node.

use std::collections::BTreeMap;
use std::time::Duration;

use kerf_nvml_mock::{MigMode, MockConfig, Model};

/// A node that NVIDIA's device plugin serves. The waits are shorter than on a real node; [`super`] tells the real ones.
#[derive(Debug, Clone)]
pub struct StaticNodeSpec {
    /// Its name, short: sockets lie in a folder of this name.
    pub name: String,
    /// Its GPUs.
    pub gpus: MockConfig,
    /// The MIG instances on each of them, by index and profile, as NVIDIA's MIG manager would have made them.
    pub instances: Vec<(u32, &'static str)>,
    /// Labels that the node has from the beginning.
    pub labels: BTreeMap<String, String>,
    /// Namespace of the ConfigMap and of NVIDIA's pods.
    pub namespace: String,
    /// The ConfigMap with the layouts. Until it exists no program of NVIDIA's starts, as no container does whose volume is
    /// missing.
    pub config_map: String,
    /// The key for a node without a label (`config.default` in the chart); empty for the chart's fallbacks, a key `default`
    /// or the only key.
    pub default_config: String,
    /// `migStrategy` of the chart: given to the programs as a variable, which wins over the layout's.
    pub mig_strategy: Option<String>,
    /// What the MPS daemon's config-manager is told that the daemon is called: as in GPU Operator's `DaemonSet`. The chart says
    /// `/usr/bin/mps-control-daemon`, which no process is called.
    pub mps_daemon_is_called: &'static str,
    /// How often the kubelet writes device counts to the node's status. 10 s on a real node.
    pub status_period: Duration,
    /// How long a program that ended waits before it is started again. 10 s on a real node, then twice as long each time, to
    /// 5 minutes.
    pub restart_after: Duration,
    /// How often the ConfigMap is looked at. About a minute on a real node.
    pub config_period: Duration,
    /// How often GPU feature discovery looks anew. 60 s on a real node.
    pub discovery_period: Duration,
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
            default_config: String::new(),
            mig_strategy: None,
            mps_daemon_is_called: "mps-control-daemon",
            status_period: Duration::from_millis(200),
            restart_after: Duration::from_millis(300),
            config_period: Duration::from_millis(100),
            discovery_period: Duration::from_mins(1),
            run_commands: false,
        }
    }

    /// Has its GPUs in MIG mode, with these instances, by GPU and profile.
    #[must_use]
    pub fn cut(mut self, instances: &[(u32, &'static str)]) -> Self {
        self.gpus.gpus.iter_mut().for_each(|group| group.mig_enabled = true);
        self.instances = instances.to_vec();
        self
    }

    /// Has a label from the beginning.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Begins with this layout.
    #[must_use]
    pub fn layout(self, key: &str) -> Self {
        self.label(super::CONFIG_LABEL, key)
    }
}
