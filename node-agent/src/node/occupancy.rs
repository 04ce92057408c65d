//! Which slices are in use: a pod holds them or may hold them, or processes run on them.

use super::device_ids::{mig_device, replica_of};
use super::holders::Account;
use super::orphaned::Orphans;
use super::placement::Placement;
use super::slices::{Share, undivided};
use crate::gpu::{Compute, GpuInstance};
use kerf_core::contract::WantedSlice;
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::planner::ObservedReplica;
use std::collections::{BTreeMap, BTreeSet};

/// The slices that exist, with their holders and orphaned processes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Occupancy<'a> {
    pub(super) placement: Placement<'a>,
    pub(super) account: &'a Account,
    pub(super) orphans: &'a Orphans,
}

impl Occupancy<'_> {
    /// Whether the device has no holder, and processes run on it. For a MIG device they run on this compute instance,
    /// and not on another of its GPU instance. For a share they are of the pod that had it, on its GPU. Processes on a
    /// MIG device with a held replica count as the holder's.
    pub(super) fn is_orphaned(self, device: &DeviceId) -> bool {
        let mig = mig_device(device);
        let mut replicas = self.placement.slices.replicas_of(&mig);
        let mut is_anothers = || replicas.any(|(other, _)| mig == *device || self.account.is_held(other));
        let mut runs = || self.placement.inventory.has_processes_on(&mig) && !is_anothers();
        !self.account.is_held(device) && (self.orphans.contains(device) || runs())
    }

    /// Whether the desired slice has no holder, and processes run on it.
    pub(super) fn is_slice_orphaned(self, wanted: &WantedSlice) -> bool {
        self.placement.device_of(wanted).is_some_and(|device| self.is_orphaned(&device))
    }

    /// The desired slices with orphaned processes.
    pub(super) fn orphaned(self) -> BTreeSet<SliceId> {
        let wanted = self.placement.desired().iter().filter(|wanted| self.is_slice_orphaned(wanted));
        wanted.map(|wanted| wanted.id.clone()).collect()
    }

    /// Whether the device is held, or may be, or processes run on it.
    pub(super) fn is_in_use(self, device: &DeviceId) -> bool {
        self.account.is_held(device) || self.is_orphaned(device)
    }

    /// Whether a pod has a part of the GPU instance, or may have. Replicas count separately, because their processes
    /// cannot be distinguished. An instance that no record lists counts as held.
    pub(super) fn is_instance_held(self, instance: &GpuInstance) -> bool {
        let is_time_sliced =
            || undivided(instance).is_some_and(|device| self.placement.slices.is_time_sliced(device));
        instance.has_processes && !is_time_sliced()
            || instance.compute == Compute::Foreign
            || instance.devices().any(|(.., d)| self.is_in_use(d) || !self.placement.is_known(d))
    }

    /// The replicas of a GPU instance, in the planner's form.
    pub(super) fn replicas(self, instance: &GpuInstance) -> Vec<ObservedReplica> {
        let observed = |(device, share): (&DeviceId, &Share)| {
            let id = self.placement.name_of_share(device, share);
            Some(ObservedReplica { number: share.shape.replica()?, id, held: self.is_in_use(device) })
        };
        let Some(of) = undivided(instance) else { return Vec::new() };
        self.placement.slices.replicas_of(of).filter_map(observed).collect()
    }

    /// Shares that had ended and that an older checkpoint has brought back. A GPU never serves two kinds at once, and a
    /// MIG device that is held as a whole has no replicas. So held shares stay, and desired ones that fit beside them.
    pub(super) fn ended_shares(self) -> Vec<DeviceId> {
        let mut served: BTreeMap<&GpuUuid, Kind> = BTreeMap::new();
        let is_held = |device: &DeviceId| self.account.held_as(device).is_some();
        let is_in_use = |device: &DeviceId| is_held(device) || self.is_orphaned(device);
        let shares = self.placement.slices.shares();
        let of_gpus = shares.iter().filter(|(_, share)| share.shape.instance().is_none());
        let (in_use, others): (Vec<_>, Vec<_>) = of_gpus.partition(|(device, _)| is_in_use(device));
        let wanted = others.into_iter().filter(|(d, share)| self.placement.is_wanted_share(d, share));
        for (_, share) in in_use.into_iter().chain(wanted) {
            served.entry(&share.gpu).or_insert(share.shape.kind());
        }
        let is_of_other_kind =
            |share: &Share| served.get(&share.gpu).is_some_and(|kind| *kind != share.shape.kind());
        let has_ended = |(device, share): &(&DeviceId, &Share)| {
            let of = replica_of(device).map(|(of, _)| of);
            // Processes on a replica's MIG device belong to the holder of the whole device.
            of.map_or_else(
                || is_of_other_kind(share) && !is_in_use(device),
                |of| is_held(&of) && !is_held(device),
            )
        };
        shares.iter().filter(has_ended).map(|(device, _)| device.clone()).collect()
    }
}
