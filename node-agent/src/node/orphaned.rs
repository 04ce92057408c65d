//! Orphaned processes, which outlive their pod. A pod that is deleted by force disappears at once from the API server
//! and from the kubelet's list, and its processes are killed later. Until an observation shows none, no other pod gets
//! what they run on.

use super::{Node, replica};
use crate::gpu::{Gpu, Process};
use crate::processes::GpuUsage;
use kerf_core::contract::WantedSlice;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use std::collections::{BTreeMap, BTreeSet};

/// The message of such a slice in the status, for admins.
pub(super) const TEXT: &str = "processes of an earlier holder still run on it";

/// How the pod ended that held a device.
#[derive(Debug)]
pub(super) enum End {
    /// Its containers had ended before.
    InOrder,
    /// It was deleted while its containers may have run.
    CutOff(PodUid),
    /// Unknown: the agent had just started, or the pod came and went during a gap of the watch.
    Unseen,
}

/// A device that is no longer held.
pub(super) type Left = (DeviceId, End);

/// Devices that count as in use until an observation shows that they are not, with the pod that was cut off. No GPU
/// reports which share a process uses, but the process's cgroup names the pod.
pub(super) type Lingered = BTreeMap<DeviceId, Option<PodUid>>;

impl Node {
    /// Notes that a pod was deleted while its containers may have run, or disappeared during a gap of the watch.
    pub fn on_pod_cut_off(&mut self, pod: PodKey, uid: PodUid) {
        self.cut_off.insert(pod, uid);
    }

    /// The held devices, each with how its pod would have ended if it no longer holds the device.
    pub(super) fn held_devices(&self) -> Vec<Left> {
        let end = |pod: &PodKey| match self.cut_off.get(pod) {
            Some(uid) => End::CutOff(uid.clone()),
            None if self.account.is_leaving(pod) => End::InOrder,
            None => End::Unseen,
        };
        let devices = self.account.devices();
        devices.map(|(device, held)| (device.clone(), end(&held.holder.key()))).collect()
    }

    /// Handles devices that are no longer held. Processes of a holder that ended normally have ended with it; another
    /// observation confirms that before anything is destroyed. Processes of other holders count as running until an
    /// observation shows none.
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

    /// Drops the known processes of the MIG device. For a replica that is unknown while other replicas are held, so
    /// nothing is dropped then.
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

    /// Takes an observation: what runs on the MIG devices of GPUs that answered is known again.
    pub(super) fn look_at_instances(&mut self) {
        let silent: Vec<&Gpu> = self.gpus.iter().filter(|gpu| gpu.fault.is_some()).collect();
        let is_unseen = |device: &DeviceId| silent.iter().any(|gpu| place(gpu, device).is_some());
        let shares = &self.shares;
        self.lingered.retain(|device, _| shares.contains_key(device) || is_unseen(device));
    }

    /// Drops shares on whose GPUs an observation shows no process of their pods.
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

    /// Whether the pod was cut off, and had a share of the GPU that its processes still use.
    pub(super) fn lingers_on(&self, gpu: &GpuUuid, uid: &PodUid) -> bool {
        let mut of_pod = self.lingered.iter().filter(|(_, of)| of.as_ref() == Some(uid));
        of_pod.any(|(device, _)| self.shares.get(device).is_some_and(|share| share.gpu == *gpu))
    }

    /// Whether the slice has no holder, and processes run on it.
    pub(super) fn is_lingered_on(&self, wanted: &WantedSlice) -> bool {
        self.device_of(wanted).is_some_and(|device| self.is_lingered(&device))
    }

    /// Whether the device has no holder, and processes run on it. For a MIG device they run on this compute instance,
    /// and not on another of its GPU instance. For a share they are of the pod that had it, on its GPU. Processes on a
    /// MIG device with a held replica count as the holder's.
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

    /// The wanted slices with orphaned processes.
    pub(super) fn lingering(&self) -> BTreeSet<SliceId> {
        let wanted = self.desired().iter().filter(|wanted| self.is_lingered_on(wanted));
        wanted.map(|wanted| wanted.id.clone()).collect()
    }

    /// Whether an observation may soon show that none is left. Later the normal interval is enough.
    pub(super) fn has_lingering(&self) -> bool {
        let is_new = |id: &SliceId| self.unserved.get(id).is_some_and(|why| !why.is_final);
        self.lingering().iter().any(is_new)
    }
}

/// The ids of a MIG device's GPU instance and compute instance.
fn place(gpu: &Gpu, device: &DeviceId) -> Option<(u32, u32)> {
    let mut places = gpu.instances.iter().flat_map(|i| i.devices().map(move |(_, ci, d)| (i.gi, ci, d)));
    places.find(|(.., known)| *known == device).map(|(gi, ci, _)| (gi, ci))
}

/// Whether the process runs there, or may.
fn is_at(process: &Process, (gi, ci): (u32, u32)) -> bool {
    process.gi == Some(gi) && process.ci.is_none_or(|of| of == ci)
}
