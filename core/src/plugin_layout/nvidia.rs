//! The names of NVIDIA's device plugin, GPU feature discovery and MIG manager, as far as layouts have to do with them.

use crate::keys;
use std::collections::BTreeMap;

/// Node label: the key of the plugin's `ConfigMap` that is the node's configuration (k8s-device-plugin `cmd/config-manager`).
pub const CONFIG_LABEL: &str = "nvidia.com/device-plugin.config";
/// Node label: the name of mig-parted's configuration to which the MIG manager cuts the node's GPUs.
pub const MIG_CONFIG_LABEL: &str = "nvidia.com/mig.config";
/// Node label, written by the MIG manager: `pending`, `rebooting`, `success` or `failed`.
pub(super) const MIG_STATE: &str = "nvidia.com/mig.config.state";
/// Node labels of GPU feature discovery (k8s-device-plugin `internal/lm`).
pub(super) const PRODUCT: &str = "nvidia.com/gpu.product";
pub(super) const COUNT: &str = "nvidia.com/gpu.count";
pub(super) const MEMORY: &str = "nvidia.com/gpu.memory";
pub(super) const MIG_CAPABLE: &str = "nvidia.com/mig.capable";
pub(super) const MIG_STRATEGY: &str = "nvidia.com/mig.strategy";
pub(super) const COMPUTE_MAJOR: &str = "nvidia.com/gpu.compute.major";
pub(super) const COMPUTE_MINOR: &str = "nvidia.com/gpu.compute.minor";
pub(super) const DRIVER: &str = "nvidia.com/cuda.driver-version.full";

/// The plugin's name for a GPU, and the beginning of its names for MIG devices.
pub(super) const GPU: &str = "nvidia.com/gpu";
pub(super) const MIG_PREFIX: &str = "nvidia.com/mig-";
/// What stands behind a name if replicas are renamed.
pub(super) const SHARED: &str = ".shared";

/// Whether NVIDIA's device plugin may serve this name.
#[must_use]
pub fn is_plugin_resource(name: &str) -> bool {
    let plain = name.strip_suffix(SHARED).unwrap_or(name);
    plain == GPU || plain.starts_with(MIG_PREFIX)
}

/// Whether a node's GPUs are kerf's own, by its labels.
#[must_use]
pub fn is_managed(labels: &BTreeMap<String, String>) -> bool {
    let value = |key: &str| labels.get(key).map(String::as_str);
    value(keys::MANAGED) == Some("true") || matches!(value(keys::NOS_PARTITIONING), Some("mig" | "mps"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugins_names_are_told_from_kerfs() {
        for name in [
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/mig-1g.10gb.shared",
        ] {
            assert!(is_plugin_resource(name), "{name}");
        }
        for name in ["nvidia.com/gpu-10gb", "nvidia.com/gpu-10gb.shared", "cpu", "nvidia.com/gpus"] {
            assert!(!is_plugin_resource(name), "{name}");
        }
    }

    #[test]
    fn an_admin_says_by_either_label_that_a_node_is_kerfs() {
        for (label, managed) in [
            (("kerf.dev/managed", "true"), true),
            (("kerf.dev/managed", "false"), false),
            (("nos.nebuly.com/gpu-partitioning", "mig"), true),
            (("nos.nebuly.com/gpu-partitioning", "mps"), true),
            (("nos.nebuly.com/gpu-partitioning", "hybrid"), false),
        ] {
            let labels = [(label.0.to_owned(), label.1.to_owned())].into();
            assert_eq!(is_managed(&labels), managed, "{label:?}");
        }
    }
}
