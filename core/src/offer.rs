//! Which devices the kubelet may hand out, under which names.
//!
//! The kubelet picks any free healthy device of a name and does not say for which pod. It may pick by a list that is old, and it
//! frees what a pod held before the agent sees the pod end. So what keeps each pod to its reservation is what is granted:
//!
//! > By a name a device is granted only if it suits every open claim of that name.
//!
//! | term | meaning |
//! |---|---|
//! | claim | a reservation whose slice its pod has not got yet |
//! | open | the pod may be bound, so that the kubelet may ask for it; or it is offered now, so that it may be bound soon |
//! | suits | it is reserved by the claim's pod; or it is worth the same and neither pod must be alone |
//!
//! Every pod that can ask has its claims open, so whatever is granted to it suits them, until it has all of them. The rest decides
//! who comes when, and that no one waits for nothing:
//!
//! | rule | reason |
//! |---|---|
//! | The claims of a pod that may be bound are open, whatever becomes of its slices. | Its Binding may be under way. |
//! | Another pod is offered its slices, under all names at once, when all exist and are served and suit what is open. | A pod that is still being cut blocks no other, and no two pods wait for each other. |
//! | A claim ends when the kubelet shows the slice as its pod's, for good. | Until then the kubelet may reject the pod, or hand the device on from an init container. |
//!
//! A pod that must be alone is offered its own slices only. So its MPS shares are of one GPU, its slices are of different GPUs, and
//! on GPUs that it selects. Idle slices are not offered.

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
    /// Whether the pod that has reserved it has got it, now or before: the kubelet lists it for that pod, or the pod is admitted.
    /// Until then the kubelet may reject the pod, or hand the device on from an init container.
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
    /// Devices that no container gets by this name, though a kubelet may know them as healthy and free: they do not suit what is
    /// open.
    pub ungranted: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
}

/// A pod that has not got all that it has reserved.
struct Pod<'a> {
    may_be_bound: bool,
    /// Its slices that exist, and what it claims by them.
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

/// The offer for `slices`, which come in the order of their reservations, beside `missing` ones.
#[must_use]
pub fn offer(slices: &[ExistingSlice], missing: &[MissingSlice], bindings: &Bindings) -> Offer {
    let mut offer = Offer::default();
    let mut given = Open::default();
    for slice in slices {
        let Some(name) = slice.held_as else { continue };
        offer.list(name, slice);
        let may_be_bound = slice.reservation.as_ref().is_some_and(|r| bindings.may_be(&r.uid));
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
    /// Lists what the pods are offered, beside what is being given to unknown pods. What is open then.
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
            // Where two pods that may be bound do not go together, which only a kubelet or an agent that was just started can
            // bring about, nothing suits both, and neither is granted anything.
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

/// The pods that claim something: those that may be bound first, each half in the order of the reservations.
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

/// What a slice is, and for whom, unless the pod has got it or has ended.
fn ware<'a>(slice: &'a ExistingSlice, bindings: &Bindings) -> Ware<'a> {
    let reservation = slice.reservation.as_ref().filter(|r| !slice.settled && !bindings.is_over(&r.uid));
    Ware::new(&slice.model, slice.shape, reservation)
}

#[cfg(test)]
#[path = "offer_tests.rs"]
mod tests;
