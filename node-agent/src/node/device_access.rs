//! What a container needs on the node to open a slice: device files and a CDI specification. A device is offered only
//! once they exist, and they are removed after it.

use super::device_ids::replica_of;
use super::inventory::Inventory;
use super::slices::Slices;
use crate::access::{Access, AccessGrant, MpsAccess, Target};
use crate::gpu::Gpu;
use crate::mps;
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid};
use std::collections::BTreeMap;
use std::path::Path;

/// Which devices can be opened and how, and why others cannot.
#[derive(Debug, Default)]
pub(super) struct DeviceAccess {
    /// Whether device nodes and CDI specifications are made.
    is_enabled: bool,
    reachable: BTreeMap<DeviceId, Result<AccessGrant, String>>,
}

impl DeviceAccess {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self { is_enabled, reachable: BTreeMap::new() }
    }

    pub(super) fn take(&mut self, reachable: BTreeMap<DeviceId, Result<AccessGrant, String>>) {
        self.reachable = reachable;
    }

    /// What each existing device needs. `mps` is the folder of the MPS daemons.
    pub(super) fn wanted(
        &self,
        inventory: &Inventory,
        slices: &Slices,
        mps: Option<&Path>,
    ) -> BTreeMap<DeviceId, Access> {
        if !self.is_enabled {
            return BTreeMap::new();
        }
        let mut wanted: BTreeMap<_, _> = inventory.gpus().iter().flat_map(instances).collect();
        for (device, share) in slices.shares() {
            if let Some((of, _)) = replica_of(device) {
                let access = wanted.get(&of).cloned();
                wanted.extend(access.map(|access| (device.clone(), access)));
                continue;
            }
            let Some(gpu) = inventory.gpu(&share.gpu) else { continue };
            let root = mps.filter(|_| share.shape.kind() == Kind::Mps);
            let target = gpu.uuid.as_str();
            let mps = root.map(|root| MpsAccess { pipe: mps::pipe_dir(root, target) });
            let access = Access { visible: target.to_owned(), target: Target::Gpu { minor: gpu.minor }, mps };
            wanted.insert(device.clone(), access);
        }
        wanted
    }

    /// Why the GPU's devices cannot be opened.
    pub(super) fn gpu_trouble(&self, gpu: &GpuUuid, inventory: &Inventory) -> Option<String> {
        let is_on_it = |device: &DeviceId| inventory.gpu_of(device).is_some_and(|g| g.uuid == *gpu);
        let mut closed = self.reachable.iter().filter_map(|(d, r)| Some((d, r.as_ref().err()?)));
        closed.find(|(device, _)| is_on_it(device)).map(|(_, text)| text.clone())
    }

    /// Why a device cannot be opened now.
    pub(super) fn trouble(&self, device: &DeviceId) -> Option<String> {
        if !self.is_enabled {
            return None;
        }
        match self.reachable.get(device) {
            Some(Ok(_)) => None,
            Some(Err(text)) => Some(text.clone()),
            None => Some("what it takes to open it is being made".to_owned()),
        }
    }

    pub(super) fn grant(&self, device: &DeviceId) -> AccessGrant {
        self.reachable.get(device).and_then(|r| r.as_ref().ok()).cloned().unwrap_or_default()
    }
}

fn instances(gpu: &Gpu) -> impl Iterator<Item = (DeviceId, Access)> {
    gpu.instances.iter().flat_map(move |instance| {
        instance.devices().map(move |(_, ci, device)| {
            let target = Target::Mig { minor: gpu.minor, gi: instance.gi, ci };
            (device.clone(), Access { visible: device.as_str().to_owned(), target, mps: None })
        })
    })
}
