//! The labels and resource names of NVIDIA's programs that kerf reads or writes, in one place.

use std::fmt::Display;

/// The prefix of all these keys.
pub const PREFIX: &str = "nvidia.com/";

/// The device plugin's name for a GPU, or for what its configuration makes of one.
pub const GPU: &str = "nvidia.com/gpu";

/// The device plugin's name for a replica of a GPU, if replicas are renamed.
pub const GPU_SHARED: &str = "nvidia.com/gpu.shared";

/// kerf's name for a replica by MPS. NVIDIA's device plugin serves one as [`GPU`] or [`GPU_SHARED`]; its `rename` takes
/// any name.
pub const GPU_MPS: &str = "nvidia.com/gpu.mps";

/// The prefix of the device plugin's names for MIG instances, which the profile follows.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";

/// The suffix that `renameByDefault` appends to a name (k8s-device-plugin `api/config/v1`,
/// `DefaultSharedResourceNameSuffix`).
pub const SHARED: &str = ".shared";

/// Node label, written by GPU Operator: `true` if it has found GPUs.
pub const PRESENT: &str = "nvidia.com/gpu.present";

/// The prefix of the node labels by which GPU Operator decides what it deploys on a node: `false` keeps the program
/// after the prefix off.
pub const DEPLOY_PREFIX: &str = "nvidia.com/gpu.deploy.";

/// The value of such a label if GPU Operator deploys the program.
pub const DEPLOYED: &str = "true";

/// The value of such a label while the MIG manager cuts the node's GPUs.
pub const DEPLOY_PAUSED: &str = "paused-for-mig-change";

/// The mark in such a label's value while the driver manager replaces the node's driver: alone instead of `true`,
/// otherwise after the former value and a `_` (k8s-driver-manager `cmd/driver-manager`, `maybeSetPaused`).
pub const DEPLOY_PAUSED_FOR_DRIVER: &str = "paused-for-driver-upgrade";

/// Node label, written by GPU Operator: the progress of the driver's upgrade (k8s-operator-libs
/// `pkg/upgrade/consts.go`).
pub const DRIVER_UPGRADE_STATE: &str = "nvidia.com/gpu-driver-upgrade-state";

/// Node labels, read by GPU Operator, of its programs that hold GPU instances. The MIG manager pauses these programs
/// (mig-parted `reconfigure`), and the device plugin too.
pub const DEPLOY_CLIENTS: [&str; 4] = [
    "nvidia.com/gpu.deploy.dcgm",
    "nvidia.com/gpu.deploy.dcgm-exporter",
    "nvidia.com/gpu.deploy.gpu-feature-discovery",
    "nvidia.com/gpu.deploy.nvsm",
];

/// Node label, read by GPU Operator: `false` keeps its device plugin off the node.
pub const DEPLOY_DEVICE_PLUGIN: &str = "nvidia.com/gpu.deploy.device-plugin";

/// Node label, read by GPU Operator: `false` keeps its MIG manager off the node.
pub const DEPLOY_MIG_MANAGER: &str = "nvidia.com/gpu.deploy.mig-manager";

/// Node label, read by GPU Operator: `false` keeps its driver for dynamic resource allocation off the node.
pub const DEPLOY_DRA_DRIVER: &str = "nvidia.com/gpu.deploy.dra-driver";

/// Node label: the key of the plugin's `ConfigMap` with the node's configuration (k8s-device-plugin
/// `cmd/config-manager`).
pub const CONFIG: &str = "nvidia.com/device-plugin.config";

/// Node label: the mig-parted configuration by which the MIG manager cuts the node's GPUs.
pub const MIG_CONFIG: &str = "nvidia.com/mig.config";

/// Node label, written by the MIG manager: `pending`, `rebooting`, `success` or `failed`.
pub const MIG_STATE: &str = "nvidia.com/mig.config.state";

/// Node label of GPU feature discovery (k8s-device-plugin `internal/lm`): the GPUs' product name, with dashes for
/// spaces.
pub const PRODUCT: &str = "nvidia.com/gpu.product";

/// Node label of GPU feature discovery: the number of GPUs, or of devices under strategy `single`.
pub const COUNT: &str = "nvidia.com/gpu.count";

/// Node label of GPU feature discovery: the memory of one GPU or device, in MiB.
pub const MEMORY: &str = "nvidia.com/gpu.memory";

/// Node label of GPU feature discovery: the way of sharing, `mps` or `time-slicing`.
pub const SHARING_STRATEGY: &str = "nvidia.com/gpu.sharing-strategy";

/// Node label of GPU feature discovery: the major number of the GPUs' CUDA compute capability.
pub const COMPUTE_MAJOR: &str = "nvidia.com/gpu.compute.major";

/// Node label of GPU feature discovery: the minor number of the compute capability.
pub const COMPUTE_MINOR: &str = "nvidia.com/gpu.compute.minor";

/// Node label of GPU feature discovery: whether a GPU has a MIG mode.
pub const MIG_CAPABLE: &str = "nvidia.com/mig.capable";

/// Node label of GPU feature discovery: how MIG devices are offered, `single` or `mixed`.
pub const MIG_STRATEGY: &str = "nvidia.com/mig.strategy";

/// Node label of GPU feature discovery: the version of the driver.
pub const DRIVER: &str = "nvidia.com/cuda.driver-version.full";

/// The suffixes of GPU feature discovery's labels about a resource; the resource name comes before them.
pub mod attribute {
    /// The product name of the devices.
    pub const PRODUCT: &str = "product";
    /// The number of devices before they are shared.
    pub const COUNT: &str = "count";
    /// The number of replicas of each device; 0 for a device that cannot be used.
    pub const REPLICAS: &str = "replicas";
    /// The way in which replicas are made.
    pub const SHARING_STRATEGY: &str = "sharing-strategy";
    /// The memory of one device, in MiB.
    pub const MEMORY: &str = "memory";
}

/// The label of an attribute of a resource, such as `nvidia.com/mig-1g.10gb.count`.
#[must_use]
pub fn label(resource: impl Display, attribute: &str) -> String {
    format!("{resource}.{attribute}")
}

/// Whether NVIDIA's device plugin may serve a resource of this name.
#[must_use]
pub fn is_plugin_resource(name: &str) -> bool {
    let plain = name.strip_suffix(SHARED).unwrap_or(name);
    plain == GPU || plain.starts_with(MIG_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gfd_labels::is_published;

    #[test]
    fn the_plugins_names_differ_from_kerfs() {
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
    fn the_labels_of_the_gpu_resource_have_constants_of_their_own() {
        for (attribute, whole) in [
            (attribute::PRODUCT, PRODUCT),
            (attribute::COUNT, COUNT),
            (attribute::MEMORY, MEMORY),
            (attribute::SHARING_STRATEGY, SHARING_STRATEGY),
        ] {
            assert_eq!(label(GPU, attribute), whole);
        }
    }

    /// kerf also writes every label that it reads of GPU feature discovery, so that the labels stay true on managed
    /// nodes.
    #[test]
    fn kerf_writes_every_label_of_gpu_feature_discovery_that_it_reads() {
        let whole = [
            PRODUCT,
            COUNT,
            MEMORY,
            SHARING_STRATEGY,
            COMPUTE_MAJOR,
            COMPUTE_MINOR,
            MIG_CAPABLE,
            MIG_STRATEGY,
            DRIVER,
        ];
        let of_instances = [attribute::PRODUCT, attribute::COUNT, attribute::REPLICAS, attribute::MEMORY]
            .map(|attribute| label("nvidia.com/mig-1g.10gb", attribute));
        for key in
            whole.into_iter().map(str::to_owned).chain(of_instances).chain([label(GPU, attribute::REPLICAS)])
        {
            assert!(is_published(&key), "{key}");
        }
        for key in [PRESENT, DEPLOY_DEVICE_PLUGIN, CONFIG, MIG_CONFIG, MIG_STATE] {
            assert!(!is_published(key), "{key} is another's");
        }
    }
}
