//! Reservation, release and repair of a node's desired slices.
//!
//! Each function returns the changed slices, or reports that nothing changes.
//!
//! [`Ledger`] is the account that a node's agent keeps by the [`Order`]s of a leader: a reservation exists once the
//! agent has it on its disk. [`BindProgress`] is the leader's side of one pod's bind, and [`Change`]s keep the leader's
//! copy of the node ([`NodeState`]) up to date (`docs/decisions/0006-ledger.md`).

mod accept;
mod bind;
mod change;
mod idle;
mod node;
mod order;

pub use accept::accept;
pub use bind::{Action, BindFailure, BindProgress, Input, PodSlices, Posted};
pub use change::{Change, NodeState, SliceKey, desired, difference};
pub use idle::{drop_disallowed, keep_warm};
pub use node::{BoundPod, Due, Found, Ledger, Reserved, Saved, Seen, Upkeep};
pub use order::{Answer, Done, Limits, Moment, Order, OrderKind, Owner, Proposal, Rejection};

use crate::contract::{
    GpuNodeSpec, GpuNodeStatus, Holder, RequestDocument, Reservation, SliceStatus, WantedSlice,
};
use crate::inventory::NodeInventory;
use crate::names::{PodKey, PodUid, SliceId};
use crate::packing::{Fleet, Refusal, Source, fit};
use crate::resource::ResourceName;

/// The owner of a reservation, and the epoch of the leader that reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerInEpoch {
    /// The UID of the pod.
    pub uid: PodUid,
    /// The namespace and name of the pod.
    pub key: PodKey,
    /// The epoch of the leader that reserves.
    pub epoch: u64,
}

/// Reserves slices for all of the pod's containers on a node of `fleet`. If the pod has a reservation, the spec stays
/// as it is, so that a repeated call reserves nothing twice.
pub fn reserve(
    spec: &GpuNodeSpec,
    status: &GpuNodeStatus,
    request: &RequestDocument,
    pod: &OwnerInEpoch,
    fleet: &Fleet,
) -> Result<GpuNodeSpec, Refusal> {
    if reserved(spec, &pod.uid).next().is_some() {
        return Ok(spec.clone());
    }
    let fit = fit(&NodeInventory::from_spec(spec, status), request, fleet)?;
    let owner = Owner { uid: pod.uid.clone(), key: pod.key.clone() };
    Ok(apply(spec, &Proposal::from_fit(owner, fit), pod.epoch))
}

/// The desired slices with the places of a proposal reserved by the leader of `epoch`. It does not check that the
/// places are free.
#[must_use]
pub fn apply(spec: &GpuNodeSpec, proposal: &Proposal, epoch: u64) -> GpuNodeSpec {
    let Owner { uid, key } = &proposal.owner;
    let mut next = spec.clone();
    for placed in &proposal.places {
        let reservation = Reservation {
            uid: uid.clone(),
            namespace: key.namespace.clone(),
            pod: key.name.clone(),
            container: placed.container.clone(),
            resource: placed.resource,
            alone: placed.alone,
            epoch,
        };
        let id = match &placed.source {
            Source::Idle(id) => {
                next.slices.retain(|s| s.id != *id);
                id.clone()
            }
            Source::Cut(destroyed) => {
                next.slices.retain(|s| !destroyed.contains(&s.id));
                new_id(&mut next)
            }
        };
        // The new slice goes last, because the order of the list is the order of the reservations.
        next.slices.push(WantedSlice {
            id,
            gpu: placed.gpu.clone(),
            shape: placed.shape,
            reservation: Some(reservation),
        });
    }
    // A node cuts in this order. Idle slices go last, because no pod waits for them.
    next.slices.sort_by_key(|s| s.reservation.is_none());
    next
}

fn new_id(next: &mut GpuNodeSpec) -> SliceId {
    next.next_slice += 1;
    SliceId::new(format!("s{}", next.next_slice))
}

/// The slices that are reserved for the pod with this UID.
pub fn reserved<'s>(spec: &'s GpuNodeSpec, uid: &'s PodUid) -> impl Iterator<Item = &'s WantedSlice> {
    spec.slices.iter().filter(move |s| s.reservation.as_ref().is_some_and(|r| r.uid == *uid))
}

/// Releases the pod's slices, which stay as idle capacity. `None` if it has none.
#[must_use]
pub fn release(spec: &GpuNodeSpec, uid: &PodUid) -> Option<GpuNodeSpec> {
    reserved(spec, uid).next()?;
    let mut next = spec.clone();
    for slice in &mut next.slices {
        slice.reservation.take_if(|r| r.uid == *uid);
    }
    Some(next)
}

/// Adapts the reservations to what the kubelet did. It may give a pod an equivalent slice that is reserved for another
/// pod; then the two pods exchange their reservations. `None` if nothing changes.
///
/// `owner` is the bound pod that holds a slice, by its UID, if that is known. A slice whose holder is known by its name
/// alone is left as it is: a pod of the same name may have been deleted by force while its containers still run.
#[must_use]
pub fn follow_holders<'o>(
    spec: &GpuNodeSpec,
    status: &GpuNodeStatus,
    owner: impl Fn(&SliceStatus) -> Option<&'o PodUid>,
) -> Option<GpuNodeSpec> {
    let mut next = spec.clone();
    for observed in &status.slices {
        let (Some(id), Some(holder)) = (&observed.id, &observed.holder) else { continue };
        let Some(here) = next.slices.iter().position(|s| s.id == *id) else { continue };
        let Some(owner) = owner(observed) else { continue };
        if let Some(there) = reserved_elsewhere(&next, status, here, owner, (holder, observed.resource)) {
            let reservation = next.slices[there].reservation.take();
            next.slices[there].reservation =
                std::mem::replace(&mut next.slices[here].reservation, reservation);
        }
    }
    (next != *spec).then_some(next)
}

/// The index of the slice that is reserved for the holder of the slice at `here`, if it is another one.
fn reserved_elsewhere<'s>(
    spec: &'s GpuNodeSpec,
    status: &GpuNodeStatus,
    here: usize,
    owner: &PodUid,
    (holder, name): (&Holder, Option<ResourceName>),
) -> Option<usize> {
    let owners_reservation =
        |s: &'s WantedSlice| s.reservation.as_ref().filter(|r| r.uid == *owner && r.key() == holder.key());
    let is_for_container =
        |s: &'s WantedSlice| owners_reservation(s).is_some_and(|r| r.container == holder.container);
    let has_name = |s: &'s WantedSlice| owners_reservation(s).is_some_and(|r| Some(r.resource) == name);
    if is_for_container(&spec.slices[here]) {
        return None;
    }
    let holder_of = |s: &WantedSlice| status.slice(&s.id).and_then(|o| o.holder.as_ref());
    // A slice that the same container already holds does not count, because a container may have several.
    let exact = spec.slices.iter().position(|s| is_for_container(s) && holder_of(s) != Some(holder));
    // The kubelet passes slices of a pod's init containers on to its other containers. Therefore it does not matter in
    // which container's name a slice is reserved, as long as it is the pod's.
    exact.or_else(|| {
        let free = |s: &WantedSlice| holder_of(s).is_none_or(|h| h.key() != holder.key());
        if has_name(&spec.slices[here]) {
            None
        } else {
            spec.slices.iter().position(|s| has_name(s) && free(s))
        }
    })
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod random_tests;
