//! What pods hold through other programs than kerf: GKE's device plugin, replicas of a MIG device, claims of NVIDIA's
//! DRA driver. These pods run on after that program is gone. Whatever a listed id can be mapped to is occupied; if it
//! cannot be mapped, every device that it may be is occupied.

use super::share::{self, Share};
use super::{Held, Node};
use crate::conflicting::DRA_DRIVER;
use crate::gpu::{Gpu, GpuInstance};
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::nvidia_keys;
use kerf_core::offer::ExistingSlice;
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
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
    pub(crate) fn of_plugin(resource: &str, id: &str) -> Option<Self> {
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
        by_gke(id).or_else(|| is_gpu.then_some(Self::Unknown))
    }

    /// Maps a device of a DRA driver; `None` for devices that are not GPUs or not visible to NVML.
    pub(crate) fn of_claim(driver: &str, device: &str) -> Option<Self> {
        // A GPU that is passed through to a virtual machine has another driver than NVIDIA's.
        let is_shown = driver == DRA_DRIVER && !device.starts_with("gpu-vfio-");
        is_shown.then(|| by_dra(device).unwrap_or(Self::Unknown))
    }
}

/// The forms `nvidia0` and `nvidia0/gi1`, either followed by `/vgpu2` if it is shared (container-engine-accelerators
/// `pkg/gpu/nvidia`).
fn by_gke(id: &str) -> Option<Foreign> {
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
fn by_dra(device: &str) -> Option<Foreign> {
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

impl Node {
    /// Marks devices as occupied that a pod may hold without a source that names the holder.
    pub(super) fn occupy(&mut self) {
        let mut occupied = self.unaccounted();
        let held = self.held_of_others();
        // A GPU that a pod may hold by NVIDIA's device plugin is represented as the share that the pod would hold.
        for (device, held) in held.iter().filter(|(device, _)| is_of_plugin(device)) {
            let Some((gpu, id)) = share::slice_of(device) else { continue };
            let Some(shape) = self.shape_of(&gpu, held.name) else { continue };
            self.shares.entry(device.clone()).or_insert(Share { gpu, id, shape });
        }
        occupied.extend(held.into_iter().map(|(device, held)| (device, Some(held))));
        self.account.occupy(occupied);
    }

    /// While the kubelet's checkpoint was never read, an init container may hold a device that no source shows and that
    /// this process has not made. The time when a GPU was first seen does not matter, because a GPU may answer late.
    /// Reservations of bound pods account for their slices: an earlier process has offered them.
    fn unaccounted(&mut self) -> BTreeMap<DeviceId, Option<Held>> {
        if !self.account.is_blind() {
            self.made.clear();
            return BTreeMap::new();
        }
        let existing = self.existing();
        let is_bound = |uid| self.pods.as_ref().is_none_or(|pods| pods.contains_key(uid));
        let promised =
            self.desired().iter().filter(|w| w.reservation.as_ref().is_some_and(|r| is_bound(&r.uid)));
        let promised: BTreeSet<DeviceId> = promised.filter_map(|wanted| self.device_of(wanted)).collect();
        let is_open = |slice: &&ExistingSlice| {
            let device = &slice.device;
            slice.held_as.is_none() && !self.made.contains(device) && !promised.contains(device)
        };
        existing.iter().filter(is_open).map(|slice| (slice.device.clone(), None)).collect()
    }

    /// The devices that pods hold, or may hold, through other programs.
    fn held_of_others(&self) -> BTreeMap<DeviceId, Held> {
        let mut held = BTreeMap::new();
        let listed = self.account.foreign().map(|(foreign, holder)| (foreign.clone(), holder));
        for (foreign, holder) in listed.chain(self.account.foreign_owned()) {
            let by_it = || Held { name: ResourceName::Whole, holder: holder.clone() };
            let devices = self.devices_of_foreign(&foreign).unwrap_or_else(|| self.gpus_of_nobody());
            let unheld = devices.into_iter().filter(|device| self.account.holder(device).is_none());
            held.extend(unheld.map(|device| (device, by_it())));
        }
        held
    }

    /// The devices that a foreign id occupies; `None` if it is unknown.
    fn devices_of_foreign(&self, foreign: &Foreign) -> Option<Vec<DeviceId>> {
        match foreign {
            // A GPU that is not visible is offered to no pod anyway.
            Foreign::Uuid(device) => Some(self.gpu_of(device).map_or_else(Vec::new, |gpu| {
                if gpu.uuid.as_str() == device.as_str() { all_of(gpu) } else { vec![device.clone()] }
            })),
            Foreign::Gpu { minor } => self.on_gpu(*minor, |_| true),
            Foreign::Instance { minor, gi } => self.on_gpu(*minor, |i| i.gi == *gi),
            Foreign::Placed { minor, start } => self.on_gpu(*minor, |i| i.instance.placement.start == *start),
            Foreign::Unknown => None,
        }
    }

    /// The GPU instances that match, or all devices of the GPU if none does. A GPU that does not answer may have
    /// another's number.
    fn on_gpu(&self, minor: u32, is_it: impl Fn(&GpuInstance) -> bool) -> Option<Vec<DeviceId>> {
        let devices = |gpu| {
            let found = devices_of(gpu, &is_it);
            if found.is_empty() { all_of(gpu) } else { found }
        };
        let mut gpus = self.gpus.iter().filter(|gpu| gpu.minor == minor).peekable();
        gpus.peek()?;
        Some(gpus.flat_map(devices).collect())
    }

    fn has_shares_of_kerf(&self, gpu: &GpuUuid) -> bool {
        self.shares.iter().any(|(device, share)| share.gpu == *gpu && !is_of_plugin(device))
    }

    /// GPUs without a share of kerf. A GPU in MIG mode counts by the instances on it, as occupied.
    fn gpus_of_nobody(&self) -> Vec<DeviceId> {
        let uncut = self.gpus.iter().filter(|gpu| gpu.table.is_none());
        uncut.filter(|gpu| !self.has_shares_of_kerf(&gpu.uuid)).flat_map(all_of).collect()
    }
}

/// Whether the id is a whole GPU's UUID, as NVIDIA's device plugin allocates it.
fn is_of_plugin(device: &DeviceId) -> bool {
    share::slice_of(device).is_some_and(|(gpu, id)| id == SliceId::new(gpu.as_str()))
}

fn all_of(gpu: &Gpu) -> Vec<DeviceId> {
    if gpu.table.is_none() { vec![DeviceId::new(gpu.uuid.as_str())] } else { devices_of(gpu, |_| true) }
}

fn devices_of(gpu: &Gpu, is_it: impl Fn(&GpuInstance) -> bool) -> Vec<DeviceId> {
    let instances = gpu.instances.iter().filter(|instance| is_it(instance));
    instances.flat_map(GpuInstance::devices).map(|(.., device)| device.clone()).collect()
}

#[cfg(test)]
#[path = "foreign_tests.rs"]
mod tests;
