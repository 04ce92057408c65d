//! What a pod may hold by an init container, without being listed or promised anything: which slices it cannot be, and which
//! GPUs it may be. NVIDIA's device plugin, which served the node before, gave it GPUs that nobody tells of.

use super::share::{self, Share};
use super::{Held, Node, NodePod};
use crate::gpu::Gpu;
use kerf_core::contract::Reservation;
use kerf_core::names::{DeviceId, GpuUuid, PodUid, SliceId};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What a pod that the kubelet has taken on cannot hold unlisted: by then it had allocated for all its containers.
#[derive(Debug)]
pub(super) struct Excluded {
    /// When the pod was seen to be admitted.
    since: Instant,
    /// Made since, or listed since as another pod's.
    devices: BTreeSet<DeviceId>,
}

/// By pod.
pub(super) type AllExcluded = BTreeMap<PodUid, Excluded>;

impl Node {
    /// Notes which devices are others' than those of the pods whose init containers may hold what nobody lists.
    pub(super) fn exclude_listed(&mut self, now: Instant) {
        let admitted = self.staged().filter(|(_, pod, ..)| pod.admitted);
        let admitted: BTreeMap<_, _> =
            admitted.map(|(uid, pod, ..)| (uid.clone(), pod.key.clone())).collect();
        self.excluded.retain(|uid, _| admitted.contains_key(uid));
        for (uid, key) in admitted {
            let none = || Excluded { since: now, devices: BTreeSet::new() };
            let excluded = self.excluded.entry(uid).or_insert_with(none);
            if self.account.asked().is_some_and(|asked| asked > excluded.since) {
                let others = self.account.devices().filter(|(_, held)| held.holder.key() != key);
                excluded.devices.extend(others.map(|(device, _)| device.clone()));
            }
        }
    }

    /// A device has come to be that was not there before. After a boot the kubelet may know it from before.
    pub(super) fn exclude_new(&mut self, device: &DeviceId) {
        if !self.is_recovering() {
            self.excluded.values_mut().for_each(|pod| pod.devices.extend([device.clone()]));
        }
    }

    /// Whether the pod cannot hold the device without its being listed.
    pub(super) fn is_excluded(&self, uid: &PodUid, device: &DeviceId) -> bool {
        self.excluded.get(uid).is_some_and(|pod| pod.devices.contains(device))
    }

    /// The GPUs of which the pod may hold something that NVIDIA's device plugin gave it: of all that kerf knows there are `known`
    /// slices that may be what it holds, and it holds `count`. On a GPU with shares of kerf's there is nothing else.
    pub(super) fn gpus_of_plugin(
        &self,
        (uid, pod): (&PodUid, &NodePod),
        name: ResourceName,
        (count, known): (usize, usize),
    ) -> Vec<DeviceId> {
        let is_its = |r: &Reservation| r.uid == *uid && r.resource == name;
        let is_promised = self.spec.slices.iter().filter_map(|w| w.reservation.as_ref()).any(is_its);
        if !pod.admitted || is_promised || known >= count || !self.health.spec.is_well() {
            return Vec::new();
        }
        let may_be = |gpu: &&Gpu| gpu.table.is_none() && self.shape_of(&gpu.uuid, name).is_some();
        let free = self.gpus.iter().filter(may_be).filter(|gpu| !self.has_shares_of_kerf(&gpu.uuid));
        let devices = free.map(|gpu| DeviceId::new(gpu.uuid.as_str()));
        devices.filter(|device| !self.account.lists(device) && !self.is_excluded(uid, device)).collect()
    }

    pub(super) fn has_shares_of_kerf(&self, gpu: &GpuUuid) -> bool {
        self.shares.iter().any(|(device, share)| share.gpu == *gpu && !is_of_plugin(device))
    }

    /// GPUs that a pod may hold by NVIDIA's device plugin exist as what it would hold.
    pub(super) fn adopt_gpus(&mut self, doubted: &BTreeMap<DeviceId, Held>) {
        for (device, held) in doubted.iter().filter(|(device, _)| is_of_plugin(device)) {
            let Some((gpu, id)) = share::slice_of(device) else { continue };
            let Some(shape) = self.shape_of(&gpu, held.name) else { continue };
            self.shares.entry(device.clone()).or_insert(Share { gpu, id, shape });
        }
    }
}

/// Whether it is a GPU as a whole by its UUID, as NVIDIA's device plugin gives it.
pub(super) fn is_of_plugin(device: &DeviceId) -> bool {
    share::slice_of(device).is_some_and(|(gpu, id)| id == SliceId::new(gpu.as_str()))
}
