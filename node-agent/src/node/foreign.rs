//! What pods have of others than kerf and is listed in other words than kerf's: by GKE's device plugin, as a replica of a MIG device,
//! by a claim of NVIDIA's DRA driver. Its pods run on after who gave it has gone. What the words tell of is occupied; where they
//! tell nothing, whatever it may be is.

use super::share::{self, Share};
use super::{Held, Node};
use crate::gpu::{Gpu, GpuInstance};
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::nvidia_keys;
use kerf_core::offer::ExistingSlice;
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// NVIDIA's DRA driver of GPUs. Its sibling `compute-domain.nvidia.com` has none.
pub(crate) const DRA_DRIVER: &str = "gpu.nvidia.com";

/// Which of the node's devices it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreign {
    /// The GPU, or the MIG device, with this UUID.
    Uuid(DeviceId),
    /// The GPU `/dev/nvidia<minor>`.
    Gpu {
        /// Its number.
        minor: u32,
    },
    /// A GPU instance.
    Instance {
        /// The number of its GPU.
        minor: u32,
        /// Its id on the GPU.
        gi: u32,
    },
    /// The GPU instance at a place.
    Placed {
        /// The number of its GPU.
        minor: u32,
        /// Its first memory slice.
        start: u8,
    },
    /// Nobody knows.
    Unknown,
}

impl Foreign {
    /// What a device plugin gave by this id; `None` for what kerf may have given, and for what is no GPU.
    pub(crate) fn of_plugin(resource: &str, id: &str) -> Option<Self> {
        let name = resource.strip_prefix(nvidia_keys::PREFIX)?;
        let ours = resource.parse::<ResourceName>();
        let (is_kerfs, is_by_turns) = (ours.is_ok(), matches!(ours, Ok(ResourceName::MigReplica(_))));
        let (device, replica) = id.split_once("::").map_or((id, None), |(device, n)| (device, Some(n)));
        if device.starts_with("GPU-") || device.starts_with("MIG-") {
            // kerf has replicas of MIG devices under names of their own.
            let may_be_kerfs = is_kerfs && (device.starts_with("GPU-") || replica.is_some() == is_by_turns);
            return (!may_be_kerfs).then(|| Self::Uuid(DeviceId::new(device)));
        }
        // Network adapters have names of NVIDIA's too.
        let is_gpu = is_kerfs || name.starts_with("gpu") || name.starts_with("mig-");
        by_gke(id).or_else(|| is_gpu.then_some(Self::Unknown))
    }

    /// What a DRA driver gave by this name; `None` for what is no GPU that NVML shows.
    pub(crate) fn of_claim(driver: &str, device: &str) -> Option<Self> {
        // One that is passed through to a virtual machine has another driver than NVIDIA's.
        let is_shown = driver == DRA_DRIVER && !device.starts_with("gpu-vfio-");
        is_shown.then(|| by_dra(device).unwrap_or(Self::Unknown))
    }
}

/// `nvidia0`, `nvidia0/gi1`, and with `/vgpu2` behind either what is shared (container-engine-accelerators `pkg/gpu/nvidia`).
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

/// `gpu-0`, `gpu-0-mig-19-2-1` (profile's id, first slice, size) and `gpu-0-mig-1g10gb-19-2` (profile, its id, first slice) of
/// k8s-dra-driver-gpu (`cmd/gpu-kubelet-plugin`, `CanonicalName`).
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
    /// Notes what somebody may hold that no source names a holder of.
    pub(super) fn occupy(&mut self) {
        let mut occupied = self.unaccounted();
        let held = self.held_of_others();
        // GPUs that a pod may hold by NVIDIA's device plugin exist as what it would hold.
        for (device, held) in held.iter().filter(|(device, _)| is_of_plugin(device)) {
            let Some((gpu, id)) = share::slice_of(device) else { continue };
            let Some(shape) = self.shape_of(&gpu, held.name) else { continue };
            self.shares.entry(device.clone()).or_insert(Share { gpu, id, shape });
        }
        occupied.extend(held.into_iter().map(|(device, held)| (device, Some(held))));
        self.account.occupy(occupied);
    }

    /// While the kubelet's checkpoint was never read, an init container may hold what this process has not made and no other
    /// source accounts for. A GPU may answer late, so it does not matter when it was first seen. The reservations of bound pods
    /// account for their slices: an earlier process has offered them.
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

    /// The devices that pods have by others, or may have.
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

    /// What it occupies; `None` where nobody knows.
    fn devices_of_foreign(&self, foreign: &Foreign) -> Option<Vec<DeviceId>> {
        match foreign {
            // A GPU that is not seen is given to nobody.
            Foreign::Uuid(device) => Some(self.gpu_of(device).map_or_else(Vec::new, |gpu| {
                if gpu.uuid.as_str() == device.as_str() { all_of(gpu) } else { vec![device.clone()] }
            })),
            Foreign::Gpu { minor } => self.on_gpu(*minor, |_| true),
            Foreign::Instance { minor, gi } => self.on_gpu(*minor, |i| i.gi == *gi),
            Foreign::Placed { minor, start } => self.on_gpu(*minor, |i| i.instance.placement.start == *start),
            Foreign::Unknown => None,
        }
    }

    /// The GPU instances that it is, or all that the GPU has. One that does not answer may pass for another's number.
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

    /// GPUs of which kerf has given nothing. One in MIG mode is occupied by what stands on it.
    fn gpus_of_nobody(&self) -> Vec<DeviceId> {
        let uncut = self.gpus.iter().filter(|gpu| gpu.table.is_none());
        uncut.filter(|gpu| !self.has_shares_of_kerf(&gpu.uuid)).flat_map(all_of).collect()
    }
}

/// Whether it is a GPU as a whole by its UUID, as NVIDIA's device plugin gives it.
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
