//! Processes that outlive their pod: one that is deleted by force is gone at once from the API server and from the kubelet's
//! account, and its processes are killed afterwards. Until a look shows none, nobody else gets what they run on.

use super::{GpuUsage, Node, replica};
use crate::gpu::{Gpu, Process};
use kerf_core::contract::WantedSlice;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use std::collections::{BTreeMap, BTreeSet};

/// What people are told.
pub(super) const TEXT: &str = "processes of an earlier holder still run on it";

/// How the pod has ended that held a device.
#[derive(Debug)]
pub(super) enum End {
    /// Its containers had ended before.
    InOrder,
    /// It was deleted while they may have run.
    CutOff(PodUid),
    /// Nobody saw how: the agent was just started, or the pod came and went during a gap of the watch.
    Unseen,
}

/// A device that is held no more.
pub(super) type Left = (DeviceId, End);

/// Devices that are taken to be used until a look shows that they are not, by the pods that were cut off: no GPU tells which
/// share a process uses, but its cgroup names the pod.
pub(super) type Lingered = BTreeMap<DeviceId, Option<PodUid>>;

impl Node {
    /// A pod was deleted while its containers may have run, or went while nobody looked.
    pub fn on_pod_cut_off(&mut self, pod: PodKey, uid: PodUid) {
        self.cut_off.insert(pod, uid);
    }

    /// What is held now, and how its pods have ended if they hold it no more.
    pub(super) fn held_devices(&self) -> Vec<Left> {
        let end = |pod: &PodKey| match self.cut_off.get(pod) {
            Some(uid) => End::CutOff(uid.clone()),
            None if self.account.is_leaving(pod) => End::InOrder,
            None => End::Unseen,
        };
        let devices = self.account.devices();
        devices.map(|(device, held)| (device.clone(), end(&held.holder.key()))).collect()
    }

    /// What of it is held no more: processes of a holder that ended in order have ended with it; whether one is left is looked at once more before anything
    /// is destroyed. Those of others are taken to run until a look shows none.
    pub(super) fn forget_processes(&mut self, mut held: Vec<Left>) {
        held.retain(|(device, _)| self.account.holder(device).is_none());
        for (device, end) in held {
            match end {
                End::InOrder => self.end_processes(&device),
                End::CutOff(uid) => drop(self.lingered.insert(device, Some(uid))),
                End::Unseen => drop(self.lingered.insert(device, None)),
            }
        }
        let account = &self.account;
        self.cut_off.retain(|pod, _| account.devices().any(|(_, held)| held.holder.key() == *pod));
    }

    /// Nothing runs any more on the MIG device, of what was seen to. Of a replica nobody knows what was its while others are held.
    fn end_processes(&mut self, device: &DeviceId) {
        let device = &replica::mig_device(device);
        if self.replicas_of(device).any(|(replica, _)| self.account.is_held(replica)) {
            return;
        }
        let Some(gpu) = self.gpus.iter_mut().find(|gpu| place(gpu, device).is_some()) else { return };
        let Some(at) = place(gpu, device) else { return };
        gpu.processes.retain(|process| !is_at(process, at));
        let processes = &gpu.processes;
        for instance in gpu.instances.iter_mut().filter(|instance| instance.gi == at.0) {
            instance.has_processes = processes.iter().any(|p| p.gi == Some(instance.gi));
        }
    }

    /// The GPUs were looked at: what runs on the MIG devices of those that answered is known again.
    pub(super) fn look_at_instances(&mut self) {
        let silent: Vec<&Gpu> = self.gpus.iter().filter(|gpu| gpu.fault.is_some()).collect();
        let is_unseen = |device: &DeviceId| silent.iter().any(|gpu| place(gpu, device).is_some());
        let shares = &self.shares;
        self.lingered.retain(|device, _| shares.contains_key(device) || is_unseen(device));
    }

    /// Forgets the shares on whose GPUs a look shows no process of their pods.
    pub(super) fn look_at_shares(&mut self) {
        let mut lingered = std::mem::take(&mut self.lingered);
        lingered.retain(|device, pod| {
            let Some(share) = self.shares.get(device) else { return true };
            let answers = self.gpu(&share.gpu).is_some_and(|gpu| gpu.fault.is_none());
            let runs = |usage: &GpuUsage| pod.as_ref().is_some_and(|uid| usage.pods.contains_key(uid));
            !answers || self.usage.get(&share.gpu).is_none_or(runs)
        });
        self.lingered = lingered;
    }

    /// Whether the pod was cut off, and has had a share of the GPU which its processes still use.
    pub(super) fn lingers_on(&self, gpu: &GpuUuid, uid: &PodUid) -> bool {
        let mut of_pod = self.lingered.iter().filter(|(_, of)| of.as_ref() == Some(uid));
        of_pod.any(|(device, _)| self.shares.get(device).is_some_and(|share| share.gpu == *gpu))
    }

    /// Whether nobody has the slice, and processes run on it.
    pub(super) fn is_lingered_on(&self, wanted: &WantedSlice) -> bool {
        self.device_of(wanted).is_some_and(|device| self.is_lingered(&device))
    }

    /// Whether nobody has the device, and processes run on it: on this compute instance, not on another of its GPU instance; or,
    /// of a pod that had the share, on its GPU. What runs on a MIG device of which a replica is held is taken to be the holder's.
    pub(super) fn is_lingered(&self, device: &DeviceId) -> bool {
        let mig = replica::mig_device(device);
        let runs = |gpu: &Gpu| {
            place(gpu, &mig).is_some_and(|at| gpu.processes.iter().any(|process| is_at(process, at)))
        };
        let is_anothers =
            || self.replicas_of(&mig).any(|(other, _)| mig == *device || self.account.is_held(other));
        let runs = || self.gpus.iter().any(runs) && !is_anothers();
        !self.account.is_held(device) && (self.lingered.contains_key(device) || runs())
    }

    /// Those of the wanted slices.
    pub(super) fn lingering(&self) -> BTreeSet<SliceId> {
        let wanted = self.desired().iter().filter(|wanted| self.is_lingered_on(wanted));
        wanted.map(|wanted| wanted.id.clone()).collect()
    }

    /// Whether a look may show soon that none is left. Later they are looked for as often as everything.
    pub(super) fn has_lingering(&self) -> bool {
        let is_new = |id: &SliceId| self.unserved.get(id).is_some_and(|why| !why.is_final);
        self.lingering().iter().any(is_new)
    }
}

/// The GPU instance and the compute instance that a MIG device is.
fn place(gpu: &Gpu, device: &DeviceId) -> Option<(u32, u32)> {
    let mut places = gpu.instances.iter().flat_map(|i| i.devices().map(move |(_, ci, d)| (i.gi, ci, d)));
    places.find(|(.., known)| *known == device).map(|(gi, ci, _)| (gi, ci))
}

/// Whether the process runs there, or may.
fn is_at(process: &Process, (gi, ci): (u32, u32)) -> bool {
    process.gi == Some(gi) && process.ci.is_none_or(|of| of == ci)
}
