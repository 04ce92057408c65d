//! The configuration of a simulated node: its GPUs, its driver, its first boot. It is read once, when the state is
//! created; later only the boot id is read again.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::files::{self, FileError};
use crate::model::Model;
use crate::sys_files;

/// The driver that the mock imitates: its answers were read on an H200.
pub const DEFAULT_DRIVER_VERSION: &str = "580.159.04";
/// That driver's answer to `nvmlSystemGetCudaDriverVersion` (CUDA 13.0).
const DEFAULT_CUDA_VERSION: i32 = 13_000;
/// The most GPUs for which the mock's PCI numbering has room.
const MAX_GPUS: u32 = 32;
/// The value of `NVML_NVLINK_MAX_LINKS`.
pub(crate) const MAX_NVLINKS: usize = 18;

/// MIG mode of a GPU at first boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigMode {
    Enabled,
    Disabled,
}

/// Equal GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuConfig {
    pub model: Model,
    /// How many GPUs; 1 if left out.
    #[serde(default = "one")]
    pub count: u32,
    /// Whether MIG mode is on at first boot. Ignored for models without MIG.
    #[serde(default)]
    pub mig_enabled: bool,
    /// A UUID (`GPU-…`) that replaces the one made from seed and index. Only for a single GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

fn one() -> u32 {
    1
}

/// GPUs that are connected by NVLink, each with each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Island {
    /// The indexes of the GPUs.
    pub gpus: Vec<u32>,
    /// The links of each pair, or with `switched` those of each GPU.
    pub links: u32,
    /// Whether the links end at NVSwitches, which have the address that a virtual machine sees.
    #[serde(default)]
    pub switched: bool,
}

impl Island {
    /// Where the links of a GPU end, by PCI address.
    pub(crate) fn ends(&self, gpu: u32) -> impl Iterator<Item = String> {
        let others = self.gpus.iter().copied().filter(move |other| *other != gpu && !self.switched);
        let switch = self.switched.then(|| "FFFFFFFF:FF:FF.0".to_owned());
        let ends = others.map(sys_files::bus_id).chain(switch);
        ends.flat_map(|end| std::iter::repeat_n(end, self.links as usize))
    }
}

/// A simulated node. Every field may be left out of the JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MockConfig {
    /// The text from which UUIDs are made. Give each node its own.
    pub seed: String,
    /// The current boot. Another id here, or in the control file, is a reboot.
    pub boot_id: String,
    /// The answer to `nvmlSystemGetDriverVersion`.
    pub driver_version: String,
    /// The answer to `nvmlSystemGetCudaDriverVersion`, major * 1000 + minor * 10.
    pub cuda_version: i32,
    /// Whether Ampere switches MIG mode at once, as if the driver could reset the GPU. If not, the change waits for a
    /// boot.
    pub ampere_reset_free: bool,
    pub gpus: Vec<GpuConfig>,
    /// The NVLink connections; none if left out.
    pub islands: Vec<Island>,
    /// The NUMA node of each GPU, by index; none if left out.
    pub numa_nodes: Vec<u32>,
}

impl Default for MockConfig {
    fn default() -> MockConfig {
        MockConfig {
            seed: "kerf".to_owned(),
            boot_id: "boot-1".to_owned(),
            driver_version: DEFAULT_DRIVER_VERSION.to_owned(),
            cuda_version: DEFAULT_CUDA_VERSION,
            ampere_reset_free: false,
            gpus: Vec::new(),
            islands: Vec::new(),
            numa_nodes: Vec::new(),
        }
    }
}

/// Why no node can have this configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There are more GPUs than the mock can number.
    #[error("gpus: {0} GPUs are asked for and at most {MAX_GPUS} can be simulated; lower the counts")]
    TooMany(u32),
    /// One UUID is used for several GPUs.
    #[error("gpus: uuid {0} is given for more than one GPU; give each its own entry with count 1")]
    SharedUuid(String),
    /// An island has GPUs that do not exist, or more links than NVML numbers.
    #[error("islands: {0:?} names a GPU that is not there, or has a GPU with more than {MAX_NVLINKS} links")]
    NoIsland(Vec<u32>),
    /// A UUID does not have NVML's form.
    #[error("gpus: uuid {0} does not begin with GPU-; write it as nvidia-smi -L prints it")]
    NoGpuUuid(String),
}

impl MockConfig {
    #[must_use]
    pub fn new() -> MockConfig {
        MockConfig::default()
    }

    /// Adds `count` GPUs of a model.
    #[must_use]
    pub fn gpus(mut self, model: Model, count: u32, mig: MigMode) -> MockConfig {
        let mig_enabled = mig == MigMode::Enabled;
        self.gpus.push(GpuConfig { model, count, mig_enabled, uuid: None });
        self
    }

    /// Connects GPUs, each pair by this many NVLinks.
    #[must_use]
    pub fn island(mut self, gpus: impl IntoIterator<Item = u32>, links: u32) -> MockConfig {
        self.islands.push(Island { gpus: gpus.into_iter().collect(), links, switched: false });
        self
    }

    /// Sets the text from which UUIDs are made, such as the node's name.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<String>) -> MockConfig {
        self.seed = seed.into();
        self
    }

    #[must_use]
    pub fn boot_id(mut self, boot_id: impl Into<String>) -> MockConfig {
        self.boot_id = boot_id.into();
        self
    }

    #[must_use]
    pub fn driver_version(mut self, version: impl Into<String>) -> MockConfig {
        self.driver_version = version.into();
        self
    }

    #[must_use]
    pub fn ampere_reset_free(mut self) -> MockConfig {
        self.ampere_reset_free = true;
        self
    }

    /// Reads and checks a configuration file.
    pub fn load(path: &Path) -> Result<MockConfig, FileError> {
        let config: Option<MockConfig> = files::read(path)?;
        let config = config.ok_or_else(|| FileError::Read {
            path: path.to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        config.check()?;
        Ok(config)
    }

    /// Checks the configuration and writes it, replacing the file as a whole.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        self.check()?;
        files::write(path, self)
    }

    /// Where the NVLinks of a GPU end.
    pub(crate) fn nvlinks(&self, gpu: u32) -> impl Iterator<Item = String> {
        let islands = self.islands.iter().filter(move |island| island.gpus.contains(&gpu));
        islands.flat_map(move |island| island.ends(gpu))
    }

    /// Checks that a node can have these counts, islands and UUIDs.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let total = self.gpus.iter().fold(0_u32, |sum, gpu| sum.saturating_add(gpu.count));
        if total > MAX_GPUS {
            return Err(ConfigError::TooMany(total));
        }
        for Island { gpus, .. } in &self.islands {
            let fits = |gpu: &u32| *gpu < total && self.nvlinks(*gpu).count() <= MAX_NVLINKS;
            if !gpus.iter().all(fits) {
                return Err(ConfigError::NoIsland(gpus.clone()));
            }
        }
        let mut seen = BTreeSet::new();
        for gpu in &self.gpus {
            let Some(uuid) = &gpu.uuid else { continue };
            if !uuid.starts_with("GPU-") {
                return Err(ConfigError::NoGpuUuid(uuid.clone()));
            }
            if gpu.count != 1 || !seen.insert(uuid) {
                return Err(ConfigError::SharedUuid(uuid.clone()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_configuration_gets_the_defaults() {
        let config: MockConfig =
            serde_json::from_str(r#"{"gpus":[{"model":"T4-16GB"},{"model":"H100-80GB","count":2}]}"#)
                .unwrap();
        assert_eq!(config.driver_version, DEFAULT_DRIVER_VERSION);
        assert_eq!(config.gpus.iter().map(|gpu| gpu.count).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn a_misspelt_field_is_refused() {
        let error = serde_json::from_str::<MockConfig>(r#"{"gpu":[]}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `gpu`"), "{error}");
    }

    #[test]
    fn impossible_configurations_name_what_is_wrong() {
        let many = MockConfig::new().gpus(Model::T4, 33, MigMode::Disabled);
        assert_eq!(many.check(), Err(ConfigError::TooMany(33)));
        for (gpus, links) in [(vec![0, 2], 1), (vec![0, 1], 19)] {
            let config = MockConfig::new().gpus(Model::T4, 2, MigMode::Disabled);
            let config = config.island(gpus.clone(), links);
            assert_eq!(config.check(), Err(ConfigError::NoIsland(gpus)));
        }
        let mut shared = MockConfig::new().gpus(Model::T4, 2, MigMode::Disabled);
        shared.gpus[0].uuid = Some("GPU-1".to_owned());
        assert_eq!(shared.check(), Err(ConfigError::SharedUuid("GPU-1".to_owned())));
        let mut odd = MockConfig::new().gpus(Model::T4, 1, MigMode::Disabled);
        odd.gpus[0].uuid = Some("1".to_owned());
        assert_eq!(odd.check(), Err(ConfigError::NoGpuUuid("1".to_owned())));
    }
}
