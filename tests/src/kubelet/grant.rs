//! A container's answers of `Allocate`, merged over its resources. A restarted container gets the same again:
//! the kubelet uses its checkpoint and does not call the plugin again.

use std::collections::BTreeMap;

use kerf_node_agent::kubelet_api::deviceplugin::ContainerAllocateResponse;
use serde::{Deserialize, Serialize};

/// The part of an allocation that the runtime gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Environment variables. The container's own `env` overrides them, as in the kubelet.
    pub environment: BTreeMap<String, String>,
    /// Host path by container path.
    pub mounts: BTreeMap<String, String>,
    /// Device nodes: host path by container path.
    pub device_nodes: BTreeMap<String, String>,
    /// Annotations for the container runtime.
    pub annotations: BTreeMap<String, String>,
    pub cdi_devices: Vec<String>,
}

impl Grant {
    /// Adds the answer for another resource. The later one wins if both set the same.
    pub fn add(&mut self, response: ContainerAllocateResponse) {
        self.environment.extend(response.envs);
        self.annotations.extend(response.annotations);
        self.mounts.extend(response.mounts.into_iter().map(|mount| (mount.container_path, mount.host_path)));
        self.device_nodes
            .extend(response.devices.into_iter().map(|device| (device.container_path, device.host_path)));
        self.cdi_devices.extend(response.cdi_devices.into_iter().map(|device| device.name));
    }
}
