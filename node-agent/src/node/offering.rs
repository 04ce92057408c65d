//! Decides which slices are offered to the kubelet, and for which pods.

use super::holders::Account;
use super::placement::Placement;
use super::pods::Pods;
use kerf_core::contract::{GpuNodeStatus, Reservation, Shape, WantedSlice};
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::offer::{ExistingSlice, MissingSlice};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};

/// The slices that exist, with the pods that hold and reserve them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offering<'a> {
    pub(super) placement: Placement<'a>,
    pub(super) account: &'a Account,
    pub(super) pods: &'a Pods,
}

impl<'a> Offering<'a> {
    /// Every slice that exists: desired ones in the order of their reservations, then those that are only held.
    pub(super) fn existing(self) -> Vec<ExistingSlice> {
        let wanted = self.placement.desired().iter().filter_map(|w| {
            let device = self.placement.device_of(w)?;
            Some(self.existing_slice(w.id.clone(), &w.gpu, w.shape, device, Some(w)))
        });
        let mut all: Vec<_> = wanted.collect();
        for slice in self.placement.unwanted() {
            // A slice without a name in the ledger uses its device's id, because the offer only needs distinct names.
            let id = slice.id.unwrap_or_else(|| SliceId::new(slice.device.as_str()));
            all.push(self.existing_slice(id, &slice.gpu, slice.shape, slice.device, None));
        }
        all
    }

    fn existing_slice(
        self,
        id: SliceId,
        gpu: &GpuUuid,
        shape: Shape,
        device: DeviceId,
        wanted: Option<&WantedSlice>,
    ) -> ExistingSlice {
        let reservation = wanted.and_then(|wanted| wanted.reservation.clone());
        ExistingSlice {
            id,
            held_as: self.account.held_as(&device),
            settled: self.is_settled(wanted, &device),
            // Filled in later, once all existing slices are known.
            served: false,
            // While the device is in doubt, a pod may hold it that is not the owner.
            reservation: reservation.filter(|_| !self.account.is_doubted(&device)),
            device,
            shape,
            model: self.placement.inventory.model(gpu),
        }
    }

    /// The reserved slices that cannot be offered and that their pods never had.
    pub(super) fn missing(self) -> Vec<MissingSlice> {
        let missing = |wanted: &WantedSlice| {
            let reservation = wanted.reservation.clone()?;
            let device = self.placement.device_of(wanted);
            let is_missing = device.is_none_or(|device| self.account.is_doubted(&device));
            let model = self.placement.inventory.model(&wanted.gpu);
            is_missing.then_some(MissingSlice { shape: wanted.shape, model, reservation })
        };
        self.placement.desired().iter().filter_map(missing).collect()
    }

    /// The names of which a pod lacks a device, among the pods that may be bound.
    pub(super) fn lacking(self, may_be_bound: impl Fn(&PodUid) -> bool) -> BTreeSet<ResourceName> {
        let lacks = |wanted: &WantedSlice| {
            let device = self.placement.device_of(wanted);
            device.is_none_or(|device| !self.is_settled(Some(wanted), &device))
        };
        let wanted = self.placement.desired().iter().filter(|wanted| lacks(wanted));
        let reservations = wanted.filter_map(|wanted| wanted.reservation.as_ref());
        reservations.filter(|r| may_be_bound(&r.uid)).map(|r| r.resource).collect()
    }

    /// Whether the pod that has reserved the slice has got its device.
    fn is_settled(self, wanted: Option<&WantedSlice>, device: &DeviceId) -> bool {
        self.is_shown(device) && !wanted.is_some_and(|wanted| self.is_anothers(wanted, device))
    }

    /// Whether another pod holds the device than the one that has reserved its slice.
    fn is_anothers(self, wanted: &WantedSlice, device: &DeviceId) -> bool {
        let holder = self.account.holder(device).map(|held| held.holder.key());
        holder.zip(wanted.reservation.as_ref()).is_some_and(|(holder, r)| holder != r.key())
    }

    /// Whether the kubelet keeps the device for the container that has it.
    fn is_shown(self, device: &DeviceId) -> bool {
        self.account.is_settled(device, |uid| self.pods.is_admitted(uid))
    }

    /// The reserved slices whose device a pod holds that has no reservation itself.
    pub(super) fn mismatches(self) -> Vec<Mismatch<'a>> {
        let reservations = self.placement.reservations;
        let mismatch = |wanted: &'a WantedSlice| {
            let reservation = wanted.reservation.as_ref()?;
            let device = self.placement.device_of(wanted)?;
            let holder = self.account.holder(&device)?.holder.key();
            let is_owner = holder == reservation.key() || reservations.all().any(|r| r.key() == holder);
            (!is_owner).then_some(Mismatch { slice: &wanted.id, reservation, device, holder })
        };
        self.placement.desired().iter().filter_map(mismatch).collect()
    }

    /// Mismatched slices of unbound pods. The extender places these pods elsewhere, because the reservation cannot be
    /// honoured here.
    pub(super) fn taken(self) -> impl Iterator<Item = (SliceId, String)> {
        // Until the API server has listed the pods, any of them may be bound.
        let is_unbound = move |uid: &PodUid| !self.pods.may_be_bound(uid);
        let taken = self.mismatches().into_iter().filter(move |m| is_unbound(&m.reservation.uid));
        taken.map(|m| (m.slice.clone(), format!("{} holds it and has not reserved it", m.holder)))
    }
}

/// A reserved slice whose device a pod without a reservation holds.
#[derive(Debug)]
pub(super) struct Mismatch<'a> {
    slice: &'a SliceId,
    reservation: &'a Reservation,
    pub(super) device: DeviceId,
    pub(super) holder: PodKey,
}

/// The pods with reservations, and whether their slices are ready in the reported status. A pod that holds some of its
/// slices is bound, and the API server shows it.
pub(super) fn ready_pods<'a>(
    desired: &'a [WantedSlice],
    status: &'a GpuNodeStatus,
) -> impl Iterator<Item = (&'a PodUid, bool)> {
    let ready = status.slices.iter().filter(|slice| slice.holder.is_none());
    let ready: BTreeMap<_, _> = ready.filter_map(|s| Some((s.id.as_ref()?, s.ready_for.as_ref()?))).collect();
    desired.iter().filter_map(move |wanted| {
        let uid = &wanted.reservation.as_ref()?.uid;
        Some((uid, ready.get(&wanted.id) == Some(&uid)))
    })
}
