//! What pods hold through other programs than kerf: GKE's device plugin, replicas of a MIG device, claims of NVIDIA's
//! DRA driver. These pods run on after that program is gone. Whatever a listed id can be mapped to is occupied; if it
//! cannot be mapped, every device that it may be is occupied.

use crate::conflicting::DRA_DRIVER;
use kerf_core::names::DeviceId;
use kerf_core::nvidia_keys;
use kerf_core::resource::ResourceName;
use std::str::FromStr;

/// Which of the node's devices a foreign id means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreign {
    /// The GPU, or the MIG device, with this UUID.
    Uuid(DeviceId),
    /// The GPU `/dev/nvidia<minor>`.
    Gpu { minor: u32 },
    Instance {
        /// The minor number of its GPU.
        minor: u32,
        gi: u32,
    },
    /// The GPU instance at a placement.
    Placed {
        /// The minor number of its GPU.
        minor: u32,
        /// Its first memory slice.
        start: u8,
    },
    /// The id has an unknown form.
    Unknown,
}

impl Foreign {
    /// Maps the id of a device plugin; `None` for ids that may be kerf's own, and for resources other than GPUs.
    pub(crate) fn from_plugin_device(resource: &str, id: &str) -> Option<Self> {
        let name = resource.strip_prefix(nvidia_keys::PREFIX)?;
        let ours = resource.parse::<ResourceName>();
        let (is_kerfs, is_by_turns) = (ours.is_ok(), matches!(ours, Ok(ResourceName::MigReplica(_))));
        let (device, replica) = id.split_once("::").map_or((id, None), |(device, n)| (device, Some(n)));
        if device.starts_with("GPU-") || device.starts_with("MIG-") {
            // kerf's own replicas of MIG devices have their own resource names.
            let may_be_kerfs = is_kerfs && (device.starts_with("GPU-") || replica.is_some() == is_by_turns);
            return (!may_be_kerfs).then(|| Self::Uuid(DeviceId::new(device)));
        }
        // NVIDIA's network adapters also use names of this prefix.
        let is_gpu = is_kerfs || name.starts_with("gpu") || name.starts_with("mig-");
        from_gke_id(id).or_else(|| is_gpu.then_some(Self::Unknown))
    }

    /// Maps a device of a DRA driver; `None` for devices that are not GPUs or not visible to NVML.
    pub(crate) fn from_claim(driver: &str, device: &str) -> Option<Self> {
        // A GPU that is passed through to a virtual machine has another driver than NVIDIA's.
        let is_shown = driver == DRA_DRIVER && !device.starts_with("gpu-vfio-");
        is_shown.then(|| from_dra_device(device).unwrap_or(Self::Unknown))
    }
}

/// The forms `nvidia0` and `nvidia0/gi1`, either followed by `/vgpu2` if it is shared (container-engine-accelerators
/// `pkg/gpu/nvidia`).
fn from_gke_id(id: &str) -> Option<Foreign> {
    let mut parts = id.split('/').peekable();
    let minor = number(parts.next()?, "nvidia")?;
    let gi = parts.next_if(|part| part.starts_with("gi")).map(|part| number(part, "gi"));
    if parts.any(|part| number::<u32>(part, "vgpu").is_none()) {
        return None;
    }
    match gi {
        Some(gi) => Some(Foreign::Instance { minor, gi: gi? }),
        None => Some(Foreign::Gpu { minor }),
    }
}

/// The forms of k8s-dra-driver-gpu (`cmd/gpu-kubelet-plugin`, `CanonicalName`): `gpu-0`, `gpu-0-mig-19-2-1` (profile's
/// id, first slice, size) and `gpu-0-mig-1g10gb-19-2` (profile, its id, first slice).
fn from_dra_device(device: &str) -> Option<Foreign> {
    let parts: Vec<&str> = device.split('-').collect();
    let placed = |minor: &str, start: &str| {
        Some(Foreign::Placed { minor: minor.parse().ok()?, start: start.parse().ok()? })
    };
    match parts.as_slice() {
        ["gpu", minor] => Some(Foreign::Gpu { minor: minor.parse().ok()? }),
        ["gpu", minor, "mig", profile, start, _size] if profile.parse::<u32>().is_ok() => {
            placed(minor, start)
        }
        ["gpu", minor, "mig", _profile, _id, start] => placed(minor, start),
        _ => None,
    }
}

fn number<T: FromStr>(text: &str, prefix: &str) -> Option<T> {
    text.strip_prefix(prefix)?.parse().ok()
}

#[cfg(test)]
#[path = "foreign_tests.rs"]
mod tests;
