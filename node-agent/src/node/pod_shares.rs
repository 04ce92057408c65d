//! Which pods have shares of the GPUs, by their reservations and by what they hold.

use super::device_ids::share_device;
use super::holders::{Account, Held};
use super::placement::Placement;
use super::pods::Pods;
use super::slices::Share;
use crate::gpu::Gpu;
use kerf_core::contract::{Reservation, Shape};
use kerf_core::names::{GpuUuid, PodKey, PodUid};
use kerf_core::units::MemoryMib;

#[derive(Debug, Clone, Copy)]
pub(super) struct PodShares<'a> {
    pub(super) placement: Placement<'a>,
    pub(super) account: &'a Account,
    pub(super) pods: &'a Pods,
}

impl<'a> PodShares<'a> {
    /// The memory of the GPU that the pod was given; `None` if it has no part of it.
    pub(super) fn given(self, gpu: &Gpu, uid: &PodUid) -> Option<MemoryMib> {
        let reserved = self.placement.desired().iter().filter(|w| w.gpu == gpu.uuid);
        let reserved = reserved.filter(|w| w.reservation.as_ref().is_some_and(|r| r.uid == *uid));
        let reserved: MemoryMib = reserved.map(|w| w.shape.memory_of(gpu.memory)).sum();
        let key = self.key(uid);
        let held = self.placement.slices.shares().iter().filter(|(device, share)| {
            share.gpu == gpu.uuid
                && key.is_some()
                && self.account.possible_holder(device).map(|h| h.holder.key()) == key
        });
        let held: MemoryMib = held.map(|(_, share)| share.shape.memory_of(gpu.memory)).sum();
        Some(reserved.max(held)).filter(|memory| !memory.is_zero())
    }

    /// Whether a pod has the share, or may get it at any moment because it is bound.
    pub(super) fn is_in_use(self, share: &Share) -> bool {
        let device = share_device(&share.gpu, &share.id);
        let is_bound = self.reservation(share).is_some_and(|r| self.pods.may_be_bound(&r.uid));
        is_bound || self.account.possible_holder(&device).is_some() || self.account.is_held(&device)
    }

    /// Whether a pod holds the share, may hold it, or has reserved it.
    pub(super) fn is_taken(self, share: &Share) -> bool {
        self.reservation(share).is_some() || self.is_in_use(share)
    }

    fn reservation(self, share: &Share) -> Option<&'a Reservation> {
        self.placement.reservations.wanted(&share.gpu, &share.id)?.reservation.as_ref()
    }

    /// The GPUs on which a container holds a share that only a neutral name describes. The container may be a client of
    /// an MPS daemon, or be under a limit, of an earlier process.
    pub(super) fn gpus_with_unknown(self) -> impl Iterator<Item = &'a GpuUuid> {
        let by_name = |held: &Held, shape| held.name.is_neutral() && matches!(shape, Shape::Whole { .. });
        let unknown = self.placement.slices.shares().iter().filter(move |(device, share)| {
            let held = self.account.holder(device);
            held.is_some_and(|held| by_name(held, share.shape))
                && !self.placement.is_wanted_share(device, share)
        });
        unknown.map(|(_, share)| &share.gpu)
    }

    /// The UID of a pod of this node, bound or with a reservation.
    pub(super) fn uid(self, key: &PodKey) -> Option<PodUid> {
        let reserved = || self.placement.reservations.all().find(|r| r.key() == *key).map(|r| &r.uid);
        self.pods.uid(key).or_else(reserved).cloned()
    }

    /// The namespace and name of a pod of this node.
    pub(super) fn key(self, uid: &PodUid) -> Option<PodKey> {
        let reserved = || self.placement.reservations.all().find(|r| r.uid == *uid).map(Reservation::key);
        self.pods.key(uid).or_else(reserved)
    }
}
