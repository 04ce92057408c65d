//! The slices that exist on the node's GPUs, and the slices of the ledger that they were made for.

mod attempt;
mod replica;
mod share;

pub(super) use replica::undivided;
pub(super) use share::{Share, shape_of};

use super::device_ids::replica_of;
use super::{Restored, Shares};
use crate::gpu::GpuInstance;
use attempt::Attempt;
use kerf_core::contract::WantedSlice;
use kerf_core::names::{DeviceId, SliceId};
use std::collections::{BTreeMap, BTreeSet};

/// How many names of MIG devices are remembered, including those of devices that are gone.
const ORIGINS_LIMIT: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Slices {
    shares: BTreeMap<DeviceId, Share>,
    /// Shares of the checkpoint whose GPUs were not seen yet.
    unseen_shares: Shares,
    /// The slices of MIG devices, now or earlier. They distinguish a slice that is being removed from an unknown one.
    origins: BTreeMap<DeviceId, SliceId>,
    /// The origins that the checkpoint had.
    recorded_origins: BTreeMap<DeviceId, SliceId>,
    /// The slices that the checkpoint desired.
    recorded: Vec<WantedSlice>,
    /// Devices that this process has made while the kubelet's checkpoint was never read: no pod held them before.
    made: BTreeSet<DeviceId>,
    attempts: Vec<Attempt>,
}

impl Slices {
    pub(super) fn restore(&mut self, restored: &Restored) {
        self.unseen_shares = restored.shares.clone().unwrap_or_default();
        self.origins.clone_from(&restored.made);
        self.recorded_origins.clone_from(&restored.made);
        self.recorded.clone_from(&restored.ledger.desired.slices);
    }

    pub(super) fn shares(&self) -> &BTreeMap<DeviceId, Share> {
        &self.shares
    }

    /// All shares that exist, with those of GPUs that were not seen yet.
    pub(super) fn to_record(&self) -> Shares {
        let existing = self.shares.iter().map(|(device, share)| (device.clone(), share.shape));
        self.unseen_shares.clone().into_iter().chain(existing).collect()
    }

    /// All devices that the agent has made or found, seen or not.
    pub(super) fn devices(&self) -> impl Iterator<Item = &DeviceId> {
        self.unseen_shares.keys().chain(self.shares.keys())
    }

    /// Serves a share or a replica from now on.
    pub(super) fn start(&mut self, device: DeviceId, share: Share) {
        self.made.insert(device.clone());
        self.shares.insert(device, share);
    }

    pub(super) fn end(&mut self, device: &DeviceId) {
        self.shares.remove(device);
    }

    /// Represents what a pod holds through another program as the share that the pod would hold.
    pub(super) fn add_foreign(&mut self, device: &DeviceId, share: Share) {
        self.shares.entry(device.clone()).or_insert(share);
    }

    /// Takes a GPU instance that was made for the slice. The slice may not be desired any more, so its name is kept.
    pub(super) fn take_created(&mut self, id: &SliceId, created: &GpuInstance) {
        self.attempts.retain(|attempt| attempt.id != *id);
        for (.., device) in created.devices() {
            self.origins.entry(device.clone()).or_insert_with(|| id.clone());
            self.made.insert(device.clone());
        }
    }

    /// Takes the names of MIG devices from another source. Later ones take precedence.
    pub(super) fn add_origins(&mut self, named: impl IntoIterator<Item = (DeviceId, SliceId)>) {
        self.origins.extend(named);
    }

    /// Forgets devices that are not visible once there are too many names. Names are kept although a device is not
    /// visible: the next observation may show it again, and without its name it would count as unknown. That is safe,
    /// because no new device gets the UUID of an old one.
    pub(super) fn limit_origins(&mut self, is_visible: impl Fn(&DeviceId) -> bool) {
        if self.origins.len() > ORIGINS_LIMIT {
            self.origins.retain(|device, _| is_visible(device));
        }
    }

    /// The slice that the MIG device was made for.
    pub(super) fn origin(&self, device: &DeviceId) -> Option<&SliceId> {
        self.origins.get(device)
    }

    pub(super) fn origins(&self) -> &BTreeMap<DeviceId, SliceId> {
        &self.origins
    }

    /// Whether the checkpoint had the MIG device as one that was to be destroyed.
    pub(super) fn was_recorded(&self, device: &DeviceId) -> bool {
        self.recorded_origins.contains_key(device)
    }

    /// The slices that the checkpoint desired.
    pub(super) fn recorded(&self) -> &[WantedSlice] {
        &self.recorded
    }

    /// Whether this process has made the device, so that no pod held it before.
    pub(super) fn is_new(&self, device: &DeviceId) -> bool {
        self.made.contains(device)
    }

    pub(super) fn forget_new(&mut self) {
        self.made.clear();
    }

    /// The replicas of a MIG device, with their device ids.
    pub(super) fn replicas_of(&self, of: &DeviceId) -> impl Iterator<Item = (&DeviceId, &Share)> {
        self.shares.iter().filter(move |(device, _)| replica_of(device).is_some_and(|(mig, _)| mig == *of))
    }

    /// Whether pods take turns on the MIG device, or may. Then no pod gets all of it.
    pub(super) fn is_time_sliced(&self, device: &DeviceId) -> bool {
        self.replicas_of(device).next().is_some()
    }
}
