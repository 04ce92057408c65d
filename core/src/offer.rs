//! Which devices the kubelet may hand out, under which names.
//!
//! The kubelet picks any free healthy device of a name and does not say for which pod. So of one name it is offered at a time
//! the slices of one pod, or slices that are worth the same: then each pod gets what it has reserved, whatever the kubelet picks
//! and in whatever order. Idle slices are not offered.
//!
//! | rule | reason |
//! |---|---|
//! | A pod is offered its slices under all names at once, when all exist and are served. | A pod that is still being cut blocks no other, and no two pods wait for each other. |
//! | A pod that may be bound stays offered until a container has its slices or its reservation is released. | Its Binding may be under way: the kubelet would give it another pod's slices. |
//! | A slice that was allocated counts as offered until the kubelet shows its pod as admitted. | The kubelet may yet reject the pod and hand the device to the next one. |
//! | Under a name nothing is granted that is not worth what is offered. | The kubelet frees what a pod held before the agent sees the pod end, and takes the list without it later. |
//!
//! A pod that must be alone is offered its own slices only: nothing else of the name is free meanwhile. So its MPS shares are
//! of one GPU, its slices are of different GPUs, and on GPUs that it selects.

use crate::contract::{MigPart, Reservation, Shape};
use crate::kind::Kind;
use crate::mig::Profile;
use crate::names::{DeviceId, PodUid, SliceId};
use crate::resource::ResourceName;
use crate::units::{ComputePercent, SizeGb};
use std::collections::{BTreeMap, BTreeSet};

/// A slice that exists on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingSlice {
    /// Its name in the spec.
    pub id: SliceId,
    /// Its device id.
    pub device: DeviceId,
    /// What it is.
    pub shape: Shape,
    /// The GPU's model.
    pub model: String,
    /// The name under which a container holds it, by the kubelet's account.
    pub held_as: Option<ResourceName>,
    /// Whether the kubelet keeps it for that container, and the container's pod has reserved it, if a pod has. Until the kubelet
    /// shows the container as one of an admitted pod it may reject the pod, or hand the device on from an init container. And where
    /// another pod has reserved it, that one may be bound and lack a device until the two reservations change places.
    pub settled: bool,
    /// Whether a container that gets it can use it.
    pub served: bool,
    /// Who it is reserved for.
    pub reservation: Option<Reservation>,
}

/// A slice that is reserved and does not exist, or that somebody unknown may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingSlice {
    /// What it is to be.
    pub shape: Shape,
    /// The GPU's model.
    pub model: String,
    /// Who it is reserved for.
    pub reservation: Reservation,
}

/// What the node offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// Healthy devices of each name.
    pub healthy: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
    /// Slices of complete pods that must wait until others of their name are allocated.
    pub waiting: BTreeSet<SliceId>,
    /// Devices that no container gets by this name, though a kubelet may know them as healthy and free: they are not worth what
    /// the name offers now.
    pub ungranted: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
}

/// What is known of the Bindings of pods that have reservations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bindings(BTreeMap<PodUid, Binding>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binding {
    /// The kubelet has been offered all the pod's slices: the extender may have sent its Binding.
    Possible,
    /// The API server shows it.
    Made,
    /// The pod was bound, and has ended.
    Over,
}

impl Bindings {
    /// What is known when these slices are reserved and these pods are bound. With each reservation comes whether the kubelet has
    /// acknowledged its slice, or a container has it.
    #[must_use]
    pub fn updated<'r>(
        &self,
        reserved: impl IntoIterator<Item = (&'r Reservation, bool)>,
        is_bound: impl Fn(&PodUid) -> bool,
    ) -> Self {
        let mut acknowledged: BTreeMap<&PodUid, bool> = BTreeMap::new();
        for (reservation, is_acknowledged) in reserved {
            *acknowledged.entry(&reservation.uid).or_insert(true) &= is_acknowledged;
        }
        let binding = |(uid, all): (&PodUid, bool)| {
            let binding = match self.0.get(uid) {
                _ if is_bound(uid) => Binding::Made,
                Some(Binding::Made | Binding::Over) => Binding::Over,
                Some(Binding::Possible) => Binding::Possible,
                None if all => Binding::Possible,
                None => return None,
            };
            Some((uid.clone(), binding))
        };
        Self(acknowledged.into_iter().filter_map(binding).collect())
    }

    /// Whether the kubelet may be about to allocate for the pod.
    #[must_use]
    pub fn may_be(&self, uid: &PodUid) -> bool {
        matches!(self.0.get(uid), Some(Binding::Possible | Binding::Made))
    }

    /// Whether the pod has ended, and only its reservation is left.
    #[must_use]
    pub fn is_over(&self, uid: &PodUid) -> bool {
        self.0.get(uid) == Some(&Binding::Over)
    }
}

/// Pods whose slices were all ready.
impl FromIterator<PodUid> for Bindings {
    fn from_iter<I: IntoIterator<Item = PodUid>>(pods: I) -> Self {
        Self(pods.into_iter().map(|uid| (uid, Binding::Possible)).collect())
    }
}

/// What two slices of one name must have in common to be equally good for any pod that asks by that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Worth<'a> {
    model: &'a str,
    kind: Kind,
    profile: Option<Profile>,
    part: Part,
    size: SizeGb,
    compute: Option<ComputePercent>,
}

/// What of its GPU instance a slice is, wherever in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Compute(u8),
    Replica,
}

impl<'a> Worth<'a> {
    fn of(model: &'a str, shape: Shape) -> Self {
        let part = match shape.mig_part() {
            MigPart::Whole => Part::Whole,
            MigPart::Compute(instance) => Part::Compute(instance.compute),
            MigPart::Replica { .. } => Part::Replica,
        };
        let profile = shape.instance().map(|instance| instance.profile);
        let (kind, size, compute) = (shape.kind(), shape.size(), shape.compute());
        Self { model, kind, profile, part, size, compute }
    }
}

/// A slice that the kubelet may hand out, for the sake of those that are offered beside it.
#[derive(Debug, Clone, Copy)]
struct Claim<'a> {
    reservation: Option<&'a Reservation>,
    worth: Worth<'a>,
}

impl<'a> Claim<'a> {
    fn of(slice: &'a ExistingSlice) -> Self {
        Self { reservation: slice.reservation.as_ref(), worth: Worth::of(&slice.model, slice.shape) }
    }

    fn of_missing(slice: &'a MissingSlice) -> Self {
        Self { reservation: Some(&slice.reservation), worth: Worth::of(&slice.model, slice.shape) }
    }

    /// Whether both may be free under one name.
    fn goes_with(&self, other: &Self) -> bool {
        let uid = |claim: &Self| claim.reservation.map(|reservation| reservation.uid.clone());
        let is_alone = |claim: &Self| claim.reservation.is_some_and(|reservation| reservation.alone);
        let same_pod = uid(self).is_some() && uid(self) == uid(other);
        same_pod || self.worth == other.worth && !is_alone(self) && !is_alone(other)
    }
}

/// What the kubelet may hand out, by name.
#[derive(Debug, Default)]
struct Open<'a>(BTreeMap<ResourceName, Vec<Claim<'a>>>);

impl<'a> Open<'a> {
    fn add(&mut self, name: ResourceName, claim: Claim<'a>) {
        self.0.entry(name).or_default().push(claim);
    }

    fn goes_with(&self, name: ResourceName, claim: &Claim<'_>) -> bool {
        self.0.get(&name).into_iter().flatten().all(|open| open.goes_with(claim))
    }

    /// The slices that are not as good as what is open under the name.
    fn unlike(&self, name: ResourceName, slices: &[ExistingSlice]) -> BTreeSet<DeviceId> {
        // What was just allocated by the name is open itself: an init container may hand it on.
        let is_handed_on = |slice: &&ExistingSlice| slice.held_as == Some(name) && !slice.settled;
        let others = slices.iter().filter(|slice| !is_handed_on(slice));
        let unlike = others.filter(|slice| !self.goes_with(name, &Claim::of(slice)));
        unlike.map(|slice| slice.device.clone()).collect()
    }
}

/// A pod and what it has reserved and no container has yet.
#[derive(Debug, Default)]
struct Pod<'a> {
    slices: Vec<(ResourceName, &'a ExistingSlice)>,
    missing: Vec<&'a MissingSlice>,
    may_be_bound: bool,
}

impl<'a> Pod<'a> {
    fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.slices.iter().all(|(_, slice)| slice.served)
    }

    fn claims(&self) -> impl Iterator<Item = (ResourceName, Claim<'a>)> {
        let slices = self.slices.iter().map(|(name, slice)| (*name, Claim::of(slice)));
        let missing = self.missing.iter().map(|slice| (slice.reservation.resource, Claim::of_missing(slice)));
        slices.chain(missing)
    }
}

/// The pods with reservations: those that may be bound first, each half in the order of the reservations.
fn pods<'a>(
    slices: &'a [ExistingSlice],
    missing: &'a [MissingSlice],
    bindings: &Bindings,
) -> impl Iterator<Item = Pod<'a>> {
    let mut order: BTreeMap<&PodUid, usize> = BTreeMap::new();
    let mut pods: Vec<Pod<'a>> = Vec::new();
    let mut place = |pods: &mut Vec<Pod<'a>>, uid: &'a PodUid| {
        *order.entry(uid).or_insert_with(|| {
            pods.push(Pod { may_be_bound: bindings.may_be(uid), ..Pod::default() });
            pods.len() - 1
        })
    };
    let is_open = |reservation: &&Reservation| !bindings.is_over(&reservation.uid);
    for slice in slices.iter().filter(|slice| slice.held_as.is_none()) {
        let Some(reservation) = slice.reservation.as_ref().filter(is_open) else { continue };
        let place = place(&mut pods, &reservation.uid);
        pods[place].slices.push((reservation.resource, slice));
    }
    for slice in missing.iter().filter(|slice| is_open(&&slice.reservation)) {
        let place = place(&mut pods, &slice.reservation.uid);
        pods[place].missing.push(slice);
    }
    pods.sort_by_key(|pod| !pod.may_be_bound);
    pods.into_iter()
}

/// The offer for `slices`, which come in the order of their reservations, beside `missing` ones.
#[must_use]
pub fn offer(slices: &[ExistingSlice], missing: &[MissingSlice], bindings: &Bindings) -> Offer {
    let mut offer = Offer::default();
    let mut open = Open::default();
    let held = || slices.iter().filter_map(|slice| Some((slice.held_as?, slice)));
    for (name, slice) in held() {
        offer.list(name, slice);
        if !slice.settled {
            open.add(name, Claim::of(slice));
        }
    }
    for pod in pods(slices, missing, bindings) {
        if !pod.may_be_bound && !pod.is_complete() {
            continue;
        }
        let blocked = pod.claims().filter(|(name, claim)| !open.goes_with(*name, claim));
        let blocked: BTreeSet<ResourceName> = blocked.map(|(name, _)| name).collect();
        if blocked.is_empty() {
            pod.slices.iter().for_each(|(name, slice)| offer.list(*name, slice));
            pod.claims().for_each(|(name, claim)| open.add(name, claim));
        } else {
            let waiting = pod.slices.iter().filter(|(name, _)| blocked.contains(name));
            offer.waiting.extend(waiting.map(|(_, slice)| slice.id.clone()));
        }
    }
    offer.ungranted = open.0.keys().map(|name| (*name, open.unlike(*name, slices))).collect();
    offer
}

impl Offer {
    fn list(&mut self, name: ResourceName, slice: &ExistingSlice) {
        if slice.served {
            self.healthy.entry(name).or_default().insert(slice.device.clone());
        }
    }
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
