//! Other GPU managers in a cluster, and how they are recognized. Pure.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Container;
use kerf_core::keys;
use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuManager {
    DevicePlugin,
    MigManager,
    DraDriver,
    Nos,
    Hami,
    Kai,
    VolcanoVgpu,
    Gpushare,
}

/// A part of the image's name and of the container's name by which each is recognized. The container counts, too,
/// because one of NVIDIA's images holds several programs.
const IMAGES: [(&str, &str, GpuManager); 10] = [
    ("k8s-device-plugin", "device-plugin", GpuManager::DevicePlugin),
    ("gpu-operator-mig-manager", "", GpuManager::MigManager),
    ("k8s-mig-manager", "", GpuManager::MigManager),
    // The container is needed, because without GPU support its kubelet plugin has only the container compute-domains,
    // which takes no GPUs.
    ("k8s-dra-driver-gpu", "gpus", GpuManager::DraDriver),
    ("nebuly-nvidia-device-plugin", "", GpuManager::Nos),
    ("nos-mig-agent", "", GpuManager::Nos),
    ("nos-gpu-agent", "", GpuManager::Nos),
    ("projecthami/hami", "", GpuManager::Hami),
    ("volcano-vgpu-device-plugin", "", GpuManager::VolcanoVgpu),
    ("k8s-gpushare-plugin", "", GpuManager::Gpushare),
];

const WEBHOOKS: [(&str, GpuManager); 3] =
    [("hami", GpuManager::Hami), ("kai-", GpuManager::Kai), ("nos-", GpuManager::Nos)];

impl GpuManager {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DevicePlugin => "NVIDIA's device plugin",
            Self::MigManager => "NVIDIA's MIG manager",
            Self::DraDriver => "NVIDIA's DRA driver",
            Self::Nos => "nos",
            Self::Hami => "HAMi",
            Self::Kai => "the KAI scheduler",
            Self::VolcanoVgpu => "Volcano's vGPU device plugin",
            Self::Gpushare => "Alibaba's gpushare device plugin",
        }
    }

    #[must_use]
    pub fn remedy(self, node: &str) -> String {
        match self {
            Self::DevicePlugin => format!(
                "keep its DaemonSet off the node; with the GPU Operator: kubectl label node {node} nvidia.com/gpu.deploy.device-plugin=false --overwrite"
            ),
            Self::MigManager => format!(
                "keep its DaemonSet off the node; with the GPU Operator: kubectl label node {node} nvidia.com/gpu.deploy.mig-manager=false --overwrite"
            ),
            Self::DraDriver => {
                "keep its kubelet plugin off the node, or install it with resources.gpus.enabled=false"
                    .to_owned()
            }
            Self::Nos | Self::Hami | Self::Kai | Self::VolcanoVgpu | Self::Gpushare => format!(
                "keep its DaemonSet off the node, or take the node from kerf: kubectl label node {node} {}=false --overwrite",
                keys::MANAGED
            ),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherManager {
    pub program: GpuManager,
    /// The object that proves it: `DaemonSet gpu-operator/nvidia-device-plugin-daemonset`.
    pub evidence: String,
    /// The nodes on which it runs; empty for a webhook, which runs for the whole cluster.
    pub nodes: BTreeSet<String>,
}

#[must_use]
pub fn manager_of_daemon_set(set: &DaemonSet) -> Option<GpuManager> {
    let spec = set.spec.as_ref()?.template.spec.as_ref()?;
    spec.containers.iter().find_map(manager_of_container)
}

fn manager_of_container(container: &Container) -> Option<GpuManager> {
    let image = container.image.as_deref().unwrap_or_default();
    let (_, _, program) =
        IMAGES.iter().find(|(part, name, _)| image.contains(part) && container.name.contains(name))?;
    Some(*program)
}

#[must_use]
pub fn manager_of_webhook(name: &str) -> Option<GpuManager> {
    let (_, program) =
        WEBHOOKS.iter().find(|(part, _)| name.starts_with(part) || name.contains(&format!("-{part}")))?;
    Some(*program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(name: &str, image: &str) -> DaemonSet {
        let containers = json!([{"name": name, "image": image}]);
        serde_json::from_value(json!({
            "spec": {"selector": {}, "template": {"spec": {"containers": containers}}}
        }))
        .unwrap()
    }

    #[test]
    fn programs_are_recognized_by_their_images() {
        let plugin = "nvcr.io/nvidia/k8s-device-plugin:v0.19.3";
        let cases = [
            ("nvidia-device-plugin-ctr", plugin, Some(GpuManager::DevicePlugin)),
            ("nvidia-device-plugin", plugin, Some(GpuManager::DevicePlugin)),
            ("gpu-feature-discovery", plugin, None),
            ("mps-control-daemon-ctr", plugin, None),
            (
                "nvidia-mig-manager",
                "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.13.0",
                Some(GpuManager::MigManager),
            ),
            ("gpus", "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0", Some(GpuManager::DraDriver)),
            ("compute-domains", "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0", None),
            ("device-plugin", "projecthami/hami:v2.7.0", Some(GpuManager::Hami)),
            ("node-agent", "kerf-node-agent:0.1.0", None),
            ("dcgm-exporter", "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.1", None),
        ];
        for (name, image, expected) in cases {
            assert_eq!(manager_of_daemon_set(&set(name, image)), expected, "{name} {image}");
        }
    }

    #[test]
    fn webhooks_are_recognized_by_their_names() {
        let cases = [
            ("hami-webhook", Some(GpuManager::Hami)),
            ("vgpu-hami-webhook", Some(GpuManager::Hami)),
            ("kai-admission", Some(GpuManager::Kai)),
            ("kerf", None),
            ("mykai-x", None),
        ];
        for (name, expected) in cases {
            assert_eq!(manager_of_webhook(name), expected, "{name}");
        }
    }
}
