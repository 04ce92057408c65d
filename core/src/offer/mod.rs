//! Which devices the kubelet may hand out, under which resource names.
//!
//! The kubelet picks any free healthy device of a name and does not say for which pod. It may pick by an old list, and
//! it frees what a pod held before the agent sees the pod end. Nothing rests on `GetPreferredAllocation`, because it
//! names no pod, and the kubelet does not call it if the topology manager has decided. Therefore each pod is kept to
//! its reservation by what the agent grants:
//!
//! > By a name a device is granted only if it suits every open claim of that name.
//!
//! | term | meaning |
//! |---|---|
//! | claim | a reservation whose slice its pod has not got yet |
//! | open | the pod may be bound, so that the kubelet may allocate for it; or its slices are offered now, so that it may be bound soon |
//! | suits | the slice is reserved by the claim's pod; or it is worth the same and neither pod must be alone |
//!
//! Every pod that can ask has its claims open. So whatever is granted to it suits them, until it has all its slices.
//! The other rules decide the order of the pods, and prevent pods from waiting without need:
//!
//! - The claims of a pod that may be bound are open, whatever happens to its slices, because its Binding may be on its
//!   way.
//! - Another pod's slices are offered under all names at once, when all exist, are served, and suit what is open. So a
//!   pod whose slices are still being cut blocks no other pod, and no two pods wait for each other.
//! - A claim ends when the kubelet shows the slice as its pod's, for good, because until then the kubelet may reject
//!   the pod, or hand the device on from an init container.
//!
//! A pod that must be alone is offered its own slices only. So its MPS shares are on one GPU, its slices on different
//! GPUs, and on GPUs that it selects. Idle slices are not offered.

mod bindings;
mod claim;

use crate::contract::{Reservation, Shape};
use crate::names::{DeviceId, PodUid, SliceId};
use crate::resource::ResourceName;
pub use bindings::Bindings;
use claim::{Claim, Open, Ware};
use std::collections::{BTreeMap, BTreeSet};

/// A slice that exists on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExistingSlice {
    /// The name of the slice in the spec.
    pub id: SliceId,
    /// The ID of its device for the kubelet.
    pub device: DeviceId,
    /// Kind, size and position of the slice.
    pub shape: Shape,
    /// The model of its GPU.
    pub model: String,
    /// The resource name under which a container holds it, by the kubelet's account; `None` while no container does.
    pub held_as: Option<ResourceName>,
    /// Whether the pod that has reserved it has got it, now or before: the kubelet lists it for that pod, or has
    /// admitted the pod. Until then the kubelet may reject the pod, or hand the device on from an init container.
    pub settled: bool,
    /// Whether a container that gets it can use it.
    pub served: bool,
    /// The reservation of the slice; `None` if it is idle.
    pub reservation: Option<Reservation>,
}

/// A slice that is reserved and does not exist, or that an unknown pod may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingSlice {
    /// Kind, size and position that it must have.
    pub shape: Shape,
    /// The model of its GPU.
    pub model: String,
    /// The reservation of the slice.
    pub reservation: Reservation,
}

/// The devices that the node offers to the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// The devices that are advertised as healthy, by resource name.
    pub healthy: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
    /// Slices of complete pods that must wait until other slices of their name are allocated.
    pub waiting: BTreeSet<SliceId>,
    /// Devices that the agent grants to no container by this name, because they do not suit what is open. The kubelet
    /// may still see them as healthy and free.
    pub ungranted: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
}

/// A pod that has not got all its reserved slices.
struct Pod<'a> {
    may_be_bound: bool,
    /// Its slices that exist, with its claims to them.
    slices: Vec<(&'a ExistingSlice, Claim<'a>)>,
    missing: Vec<Claim<'a>>,
}

impl<'a> Pod<'a> {
    fn is_complete(&self) -> bool {
        let is_free = |slice: &ExistingSlice| slice.served && slice.held_as.is_none();
        self.missing.is_empty() && self.slices.iter().all(|(slice, _)| is_free(slice))
    }

    fn claims(&self) -> impl Iterator<Item = &Claim<'a>> {
        self.slices.iter().map(|(_, claim)| claim).chain(&self.missing)
    }
}

/// The offer for `slices`, in the order of their reservations, and for `missing` ones.
#[must_use]
pub fn offer(slices: &[ExistingSlice], missing: &[MissingSlice], bindings: &Bindings) -> Offer {
    let mut offer = Offer::default();
    let mut given = Open::default();
    for slice in slices {
        let Some(name) = slice.held_as else { continue };
        offer.list(name, slice);
        let may_be_bound = slice.reservation.as_ref().is_some_and(|r| bindings.may_be(&r.uid));
        // The kubelet is giving this device to an unknown pod. It counts as that pod's claim, so that no pod which
        // cannot be bound yet is offered slices that do not suit it.
        if !slice.settled && !may_be_bound {
            given.add(ware(slice, bindings).claim_by(name));
        }
    }
    let open = offer.list_pods(&pods(slices, missing, bindings), &given);
    for name in open.names() {
        let ungranted = slices.iter().filter(|slice| !open.suits(name, &ware(slice, bindings)));
        offer.ungranted.insert(name, ungranted.map(|slice| slice.device.clone()).collect());
    }
    offer
}

impl Offer {
    /// Adds the devices that the pods are offered, beside what unknown pods are being given. Returns the open claims.
    fn list_pods<'a>(&mut self, pods: &[Pod<'a>], given: &Open<'_>) -> Open<'a> {
        let mut open = Open::default();
        for pod in pods.iter().filter(|pod| pod.may_be_bound || pod.is_complete()) {
            let is_free = |claim: &Claim<'_>| open.allows(claim) && (pod.may_be_bound || given.allows(claim));
            let blocked: BTreeSet<_> =
                pod.claims().filter(|claim| !is_free(claim)).map(|claim| claim.name).collect();
            let is_blocked = |claim: &Claim<'_>| blocked.contains(&claim.name);
            for (slice, claim) in pod.slices.iter().filter(|(slice, _)| slice.held_as.is_none()) {
                if blocked.is_empty() {
                    self.list(claim.name, slice);
                } else if is_blocked(claim) {
                    self.waiting.insert(slice.id.clone());
                }
            }
            // Two bound pods can exclude each other only after a restart of the kubelet or the agent. Then no device
            // suits both, and neither is granted one.
            if blocked.is_empty() || pod.may_be_bound {
                pod.claims().for_each(|claim| open.add(*claim));
            }
        }
        open
    }

    fn list(&mut self, name: ResourceName, slice: &ExistingSlice) {
        if slice.served {
            self.healthy.entry(name).or_default().insert(slice.device.clone());
        }
    }
}

/// The pods with claims. Those that may be bound come first, and each half is in the order of the reservations.
fn pods<'a>(slices: &'a [ExistingSlice], missing: &'a [MissingSlice], bindings: &Bindings) -> Vec<Pod<'a>> {
    let mut places: BTreeMap<&PodUid, usize> = BTreeMap::new();
    let mut pods: Vec<Pod<'a>> = Vec::new();
    let mut place = |pods: &mut Vec<Pod<'a>>, uid: &'a PodUid| {
        *places.entry(uid).or_insert_with(|| {
            let may_be_bound = bindings.may_be(uid);
            pods.push(Pod { may_be_bound, slices: Vec::new(), missing: Vec::new() });
            pods.len() - 1
        })
    };
    for slice in slices {
        let Some((uid, claim)) = ware(slice, bindings).claim() else { continue };
        let place = place(&mut pods, uid);
        pods[place].slices.push((slice, claim));
    }
    for slice in missing.iter().filter(|slice| !bindings.is_over(&slice.reservation.uid)) {
        let ware = Ware::new(&slice.model, slice.shape, Some(&slice.reservation));
        let Some((uid, claim)) = ware.claim() else { continue };
        let place = place(&mut pods, uid);
        pods[place].missing.push(claim);
    }
    pods.sort_by_key(|pod| !pod.may_be_bound);
    pods
}

/// A slice with its reservation, unless the pod has got it or has ended.
fn ware<'a>(slice: &'a ExistingSlice, bindings: &Bindings) -> Ware<'a> {
    let reservation = slice.reservation.as_ref().filter(|r| !slice.settled && !bindings.is_over(&r.uid));
    Ware::new(&slice.model, slice.shape, reservation)
}

#[cfg(test)]
mod tests;
