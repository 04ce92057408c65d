//! Processes that outlive their pod: one that is deleted by force is gone at once from the API server and from the kubelet's
//! account, and its processes are killed afterwards. Until a look shows none, nobody else gets what they run on.

use super::{GpuUsage, Node};
use crate::gpu::GpuInstance;
use kerf_core::contract::WantedSlice;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use std::collections::{BTreeMap, BTreeSet};

/// What people are told.
pub(super) const TEXT: &str = "processes of an earlier holder still run on it";

/// A device that is held no more, and the pod that had it if that was cut off.
pub(super) type Left = (DeviceId, Option<PodUid>);

/// Shares, by the pods that were cut off and may use them still: no GPU tells which share a process uses, but its cgroup names
/// the pod.
pub(super) type LingeredShares = BTreeMap<DeviceId, PodUid>;

impl Node {
    /// A pod was deleted while its containers ran.
    pub fn on_pod_cut_off(&mut self, pod: PodKey, uid: PodUid) {
        self.cut_off.insert(pod, uid);
    }

    /// What is held now, and by which pod that was cut off.
    pub(super) fn listed_devices(&self) -> Vec<Left> {
        let devices = self.account.devices();
        devices
            .map(|(device, held)| (device.clone(), self.cut_off.get(&held.holder.key()).cloned()))
            .collect()
    }

    /// Processes of a holder end with it; whether one is left is looked at once more before anything is destroyed. Those of a
    /// pod that was cut off are taken to run until a look shows none.
    pub(super) fn forget_processes(&mut self, left: &[Left]) {
        for instance in self.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
            let mut of_left = left.iter().filter(|(left, _)| instance.devices().any(|(.., d)| d == left));
            if let Some((_, first)) = of_left.next() {
                instance.has_processes = first.is_some() || of_left.any(|(_, cut_off)| cut_off.is_some());
            }
        }
        let shares = left.iter().filter(|(device, _)| self.shares.contains_key(device));
        let cut_off = shares.filter_map(|(device, pod)| Some((device.clone(), pod.clone()?)));
        self.lingered_shares.extend(cut_off);
        let account = &self.account;
        self.cut_off.retain(|pod, _| account.devices().any(|(_, held)| held.holder.key() == *pod));
    }

    /// Forgets the shares on whose GPUs a look shows no process of their pods.
    pub(super) fn look_at_shares(&mut self) {
        let mut lingered = std::mem::take(&mut self.lingered_shares);
        lingered.retain(|device, uid| {
            let Some(share) = self.shares.get(device) else { return false };
            let answers = self.gpu(&share.gpu).is_some_and(|gpu| gpu.fault.is_none());
            let runs = |usage: &GpuUsage| usage.pods.contains_key(uid);
            !answers || self.usage.get(&share.gpu).is_none_or(runs)
        });
        self.lingered_shares = lingered;
    }

    /// Whether the pod was cut off, and has had a share of the GPU which its processes still use.
    pub(super) fn lingers_on(&self, gpu: &GpuUuid, uid: &PodUid) -> bool {
        let mut of_pod = self.lingered_shares.iter().filter(|(_, of)| *of == uid);
        of_pod.any(|(device, _)| self.shares.get(device).is_some_and(|share| share.gpu == *gpu))
    }

    /// Whether nobody has the slice, and processes run on it.
    pub(super) fn is_lingered_on(&self, wanted: &WantedSlice) -> bool {
        let has = |i: &GpuInstance| i.has_processes && !i.devices().any(|(.., d)| self.account.is_held(d));
        let share = || self.device_of(wanted).is_some_and(|device| self.is_lingered_share(&device));
        self.instance_of(wanted).is_some_and(has) || share()
    }

    /// Whether nobody has the share, and processes of a pod that had it run on its GPU.
    pub(super) fn is_lingered_share(&self, device: &DeviceId) -> bool {
        self.lingered_shares.contains_key(device) && !self.account.is_held(device)
    }

    /// Those of the wanted slices.
    pub(super) fn lingering(&self) -> BTreeSet<SliceId> {
        let wanted = self.spec.slices.iter().filter(|wanted| self.is_lingered_on(wanted));
        wanted.map(|wanted| wanted.id.clone()).collect()
    }

    /// Whether a look may show soon that none is left. Later they are looked for as often as everything.
    pub(super) fn has_lingering(&self) -> bool {
        let is_new = |id: &SliceId| self.unserved.get(id).is_some_and(|why| !why.is_final);
        self.lingering().iter().any(is_new)
    }
}
