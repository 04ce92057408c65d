//! The device lists for the kubelet, and what a container gets with each device.

use super::advertise::{Advertised, DevicesByName, Listing};
use super::device_access::DeviceAccess;
use super::facts::Facts;
use super::{Grant, ListedDevice, ShareGrant};
use kerf_core::closeness::Closeness;
use kerf_core::names::DeviceId;
use kerf_core::offer::ExistingSlice;
use kerf_core::resource::ResourceName;
use kerf_core::units::ComputePercent;
use std::collections::BTreeMap;

pub(super) struct Lister<'a> {
    pub(super) facts: &'a Facts,
    pub(super) advertised: &'a Advertised,
    pub(super) access: &'a DeviceAccess,
    /// Devices that no container gets by this name.
    pub(super) ungranted: &'a DevicesByName,
    pub(super) closeness: Closeness,
}

impl Lister<'_> {
    pub(super) fn lists(&self, existing: &[ExistingSlice]) -> BTreeMap<ResourceName, Vec<ListedDevice>> {
        let slices: BTreeMap<&DeviceId, &ExistingSlice> = existing.iter().map(|s| (&s.device, s)).collect();
        let listed = |name, id: &DeviceId, listing| self.listed(name, id, listing, slices.get(id).copied());
        let lists = self.advertised.lists();
        lists.map(|(name, list)| (name, list.map(|(id, l)| listed(name, id, l)).collect())).collect()
    }

    fn listed(
        &self,
        name: ResourceName,
        id: &DeviceId,
        listing: Listing,
        slice: Option<&ExistingSlice>,
    ) -> ListedDevice {
        let is_unlike = self.ungranted.get(&name).is_some_and(|devices| devices.contains(id));
        let is_granted = self.advertised.has_offered() && listing != Listing::Revoked && !is_unlike;
        let reservation = slice.and_then(|slice| slice.reservation.as_ref());
        ListedDevice {
            id: id.clone(),
            healthy: listing == Listing::Healthy,
            held: self.facts.account.is_held(id),
            grant: slice.filter(|_| is_granted).and_then(|slice| self.grant(slice)),
            reserved_for: reservation.map(|reservation| reservation.uid.clone()),
            numa: self.facts.inventory.gpu_of(id).and_then(|gpu| gpu.topology.numa),
            closeness: self.closeness.clone(),
        }
    }

    fn grant(&self, slice: &ExistingSlice) -> Option<Grant> {
        let gpu = self.facts.inventory.gpu_of(&slice.device)?;
        let is_limited = self.facts.reservations.rule(gpu).mps.limits_compute();
        let share = slice.shape.instance().is_none().then(|| ShareGrant {
            kind: slice.shape.kind(),
            memory: slice.shape.memory_of(gpu.memory),
            of: gpu.memory,
            compute: if is_limited { slice.shape.compute() } else { Some(ComputePercent::ALL) },
        });
        let text = format!("{} {} on {}", slice.id, slice.shape, gpu.uuid);
        Some(Grant { gpu: gpu.uuid.clone(), slice: text, share, access: self.access.grant(&slice.device) })
    }
}
