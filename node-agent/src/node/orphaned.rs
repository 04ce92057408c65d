//! Orphaned processes, which outlive their pod. A pod that is deleted by force disappears at once from the API server
//! and from the kubelet's list, and its processes are killed later. Until an observation shows none, no other pod gets
//! what they run on.

use super::holders::Account;
use super::inventory::Inventory;
use super::slices::Slices;
use crate::processes::{GpuUsage, Usage};
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid};
use std::collections::BTreeMap;

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

#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Devices that count as in use until an observation shows that they are not, with the pod that was cut off. No GPU
    /// reports which share a process uses, but the process's cgroup names the pod.
    devices: BTreeMap<DeviceId, Option<PodUid>>,
    /// Pods that were deleted while their containers may have run, and that the kubelet still lists.
    cut_off: BTreeMap<PodKey, PodUid>,
}

impl Orphans {
    /// Records that a pod was deleted while its containers may have run, or disappeared during a gap of the watch.
    pub(super) fn cut_off(&mut self, pod: PodKey, uid: PodUid) {
        self.cut_off.insert(pod, uid);
    }

    /// The held devices, each with how its pod would have ended if it no longer holds the device.
    pub(super) fn held_devices(&self, account: &Account) -> Vec<Left> {
        let end = |pod: &PodKey| match self.cut_off.get(pod) {
            Some(uid) => End::CutOff(uid.clone()),
            None if account.is_leaving(pod) => End::InOrder,
            None => End::Unseen,
        };
        account.devices().map(|(device, held)| (device.clone(), end(&held.holder.key()))).collect()
    }

    /// Handles devices that are no longer held. Processes of a holder that ended normally have ended with it; another
    /// observation confirms that before anything is destroyed. Processes of other holders count as running until an
    /// observation shows none. Returns the devices whose processes have ended.
    pub(super) fn take_left(&mut self, mut held: Vec<Left>, account: &Account) -> Vec<DeviceId> {
        held.retain(|(device, _)| account.holder(device).is_none());
        let mut ended = Vec::new();
        for (device, end) in held {
            match end {
                End::InOrder => ended.push(device),
                End::CutOff(uid) => drop(self.devices.insert(device, Some(uid))),
                End::Unseen => drop(self.devices.insert(device, None)),
            }
        }
        self.cut_off.retain(|pod, _| account.devices().any(|(_, held)| held.holder.key() == *pod));
        ended
    }

    /// Takes an observation: what runs on the MIG devices of GPUs that answered is known again.
    pub(super) fn look_at_instances(&mut self, inventory: &Inventory, slices: &Slices) {
        let is_unseen = |device: &DeviceId| inventory.is_on_faulty_gpu(device);
        self.devices.retain(|device, _| slices.shares().contains_key(device) || is_unseen(device));
    }

    /// Drops shares on whose GPUs an observation shows no process of their pods.
    pub(super) fn look_at_shares(&mut self, inventory: &Inventory, slices: &Slices, usage: &Usage) {
        self.devices.retain(|device, pod| {
            let Some(share) = slices.shares().get(device) else { return true };
            let answers = inventory.gpu(&share.gpu).is_some_and(|gpu| gpu.fault.is_none());
            let runs = |usage: &GpuUsage| pod.as_ref().is_some_and(|uid| usage.pods.contains_key(uid));
            // Without a measurement of the GPU the processes may still run.
            !answers || usage.get(&share.gpu).is_none_or(runs)
        });
    }

    /// Whether processes of a pod that was cut off may still use the device.
    pub(super) fn contains(&self, device: &DeviceId) -> bool {
        self.devices.contains_key(device)
    }

    /// Whether the pod was cut off, and had a share of the GPU that its processes still use.
    pub(super) fn has_share(&self, gpu: &GpuUuid, uid: &PodUid, slices: &Slices) -> bool {
        let mut of_pod = self.devices.iter().filter(|(_, of)| of.as_ref() == Some(uid));
        of_pod.any(|(device, _)| slices.shares().get(device).is_some_and(|share| share.gpu == *gpu))
    }
}
