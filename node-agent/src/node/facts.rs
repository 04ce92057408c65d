//! The facts about the node. Each part owns its fields; this module orders the calls that touch several.

use super::device_ids::mig_device;
use super::holders::Account;
use super::inventory::Inventory;
use super::observed::Observer;
use super::occupancy::Occupancy;
use super::offering::Offering;
use super::orphaned::{Left, Orphans};
use super::placement::Placement;
use super::pod_shares::PodShares;
use super::pods::{NodePods, Pods};
use super::reservations::Reservations;
use super::rules::Rules;
use super::slices::Slices;
use super::usage::{GpuUse, Measured};
use super::{Holders, Restored, names};
use crate::gpu::{Gpu, Unresponsive};
use crate::processes::Usage;
use kerf_core::contract::{GpuNodeStatus, SliceStatus};
use kerf_core::ledger::Limits;
use kerf_core::names::DeviceId;
use kerf_core::resource::ResourceName;
use std::collections::BTreeSet;
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) inventory: Inventory,
    pub(super) reservations: Reservations,
    pub(super) slices: Slices,
    pub(super) account: Account,
    pub(super) pods: Pods,
    pub(super) orphans: Orphans,
    pub(super) measured: Measured,
}

impl Facts {
    pub(super) fn new(limits: Limits) -> Self {
        Self { reservations: Reservations::new(limits), ..Self::default() }
    }

    pub(super) fn restore(&mut self, restored: &Restored, now: Instant) {
        self.inventory.restore(restored, now);
        self.reservations.restore(restored, now);
        self.slices.restore(restored);
    }

    /// Writes what a restart needs into the checkpoint.
    pub(super) fn save(&self, record: &mut Restored, is_observed: bool) {
        self.inventory.save(record);
        self.reservations.save(record);
        record.made = self.placement().leftovers(is_observed);
        record.shares = Some(self.slices.to_record());
        record.limits = self.gpu_use().wanted_limits();
    }

    /// Takes an observation of the GPUs, and those that have never answered.
    pub(super) fn observe(&mut self, gpus: Vec<Gpu>, unresponsive: Unresponsive) {
        self.inventory.take_unresponsive(unresponsive);
        self.inventory.observe(gpus, self.reservations.policy());
        self.orphans.look_at_instances(&self.inventory, &self.slices);
        self.slices.look_at_attempts(&self.inventory);
    }

    pub(super) fn measure(&mut self, usage: Usage) {
        let placement =
            Placement { inventory: &self.inventory, slices: &self.slices, reservations: &self.reservations };
        let shares = PodShares { placement, account: &self.account, pods: &self.pods };
        self.measured.take(usage, shares);
        self.orphans.look_at_shares(&self.inventory, &self.slices, self.measured.usage());
    }

    pub(super) fn take_holders(&mut self, holders: Holders) {
        let before = self.orphans.held_devices(&self.account);
        self.account.take(holders, self.pods.listed());
        self.forget_processes(before);
    }

    pub(super) fn take_pods(&mut self, pods: NodePods) {
        // On the first list no pod counts as just ended: pods of an earlier process ended unobserved, or hold nothing
        // any more.
        let is_first = self.pods.listed().is_none();
        let before = if is_first { Vec::new() } else { self.orphans.held_devices(&self.account) };
        self.account.take_pods(Some(&pods));
        self.pods.take(pods);
        self.forget_processes(before);
    }

    /// Drops the known processes of devices whose holders have ended normally. Which replica a process belongs to is
    /// unknown while other replicas are held, so nothing is dropped then.
    fn forget_processes(&mut self, before: Vec<Left>) {
        for device in self.orphans.take_left(before, &self.account) {
            let device = mig_device(&device);
            let is_held = |replica: &DeviceId| self.account.is_held(replica);
            if !self.slices.replicas_of(&device).any(|(replica, _)| is_held(replica)) {
                self.inventory.drop_processes(&device);
            }
        }
    }

    /// Applies the time to the reservations. Returns when something is due.
    pub(super) fn pass_time(&mut self, now: Instant) -> Option<Instant> {
        let due = self.reservations.follow_pods(self.pods.listed(), now);
        self.reservations.adopt_assigned(self.pods.listed(), now);
        [due, self.reservations.await_takeover(now)].into_iter().flatten().min()
    }

    /// Does the work that is due in the node's current state. Returns whether a new slice is desired for it.
    pub(super) fn upkeep(&mut self, status: &GpuNodeStatus, now: Instant) -> bool {
        let account = &self.account;
        // The kubelet's checkpoint has UIDs.
        let owner = |shown: &SliceStatus| account.owner(shown.device.as_ref()?);
        self.reservations.upkeep(status, owner, now)
    }

    /// The names that must be registered; empty until NVML has been read. No name is removed while the agent runs.
    pub(super) fn resource_names(&self) -> BTreeSet<ResourceName> {
        // Pods have these names from before the node's GPUs or kerf's version changed.
        let held = self.account.devices().map(|(_, held)| held.name);
        let desired = self.reservations.desired().iter();
        let here = desired.filter(|wanted| self.inventory.gpu(&wanted.gpu).is_some());
        let reserved = here.filter_map(|wanted| Some((wanted.reservation.as_ref()?.resource, wanted.shape)));
        let reserved =
            reserved.filter(|(name, shape)| names::is_kept_by(*name, *shape)).map(|(name, _)| name);
        names::resource_names(self.rules().all()).into_iter().chain(held).chain(reserved).collect()
    }

    /// Makes the shares exist that an earlier process or the kubelet has, and drops those that have ended.
    pub(super) fn adopt(&mut self, knows_holders: bool) {
        self.slices.restore_shares(&self.inventory);
        self.slices.adopt_shares(&self.account, &self.inventory, &self.reservations);
        self.slices.adopt_replicas(&self.account, &self.inventory, self.reservations.desired());
        if knows_holders {
            for device in self.occupancy().ended_shares() {
                tracing::info!(%device, "a share that ended before the agent was started is forgotten");
                self.slices.end(&device);
            }
        }
        self.occupy();
    }

    /// Remembers which slice each MIG device was made for.
    pub(super) fn remember_origins(&mut self, is_observed: bool) {
        let origins = self.placement().origins();
        self.slices.add_origins(origins);
        if is_observed {
            let instances = self.inventory.gpus().iter().flat_map(|gpu| &gpu.instances);
            let is_visible = |device: &DeviceId| {
                instances.clone().any(|instance| instance.devices().any(|(.., visible)| visible == device))
            };
            self.slices.limit_origins(is_visible);
        }
    }

    /// Whether only memory in use outside of kerf keeps the GPU from being allocated as a whole.
    pub(super) fn is_kept_by_outside_memory(&self, gpu: &Gpu) -> bool {
        self.rules().allows_whole(gpu) && !self.gpu_use().outside(gpu).is_zero()
    }

    pub(super) fn placement(&self) -> Placement<'_> {
        let Self { inventory, slices, reservations, .. } = self;
        Placement { inventory, slices, reservations }
    }

    pub(super) fn occupancy(&self) -> Occupancy<'_> {
        Occupancy { placement: self.placement(), account: &self.account, orphans: &self.orphans }
    }

    pub(super) fn pod_shares(&self) -> PodShares<'_> {
        PodShares { placement: self.placement(), account: &self.account, pods: &self.pods }
    }

    pub(super) fn gpu_use(&self) -> GpuUse<'_> {
        GpuUse { shares: self.pod_shares(), orphans: &self.orphans, measured: &self.measured }
    }

    pub(super) fn rules(&self) -> Rules<'_> {
        Rules { inventory: &self.inventory, reservations: &self.reservations }
    }

    pub(super) fn observer(&self) -> Observer<'_> {
        Observer { rules: self.rules(), occupancy: self.occupancy(), gpu_use: self.gpu_use() }
    }

    pub(super) fn offering(&self) -> Offering<'_> {
        Offering { placement: self.placement(), account: &self.account, pods: &self.pods }
    }
}
