//! Whether a node's agent accepts a proposal. The agent's own planner and checker decide.

use super::{Proposal, Rejection, apply};
use crate::contract::{GpuNodeSpec, GpuNodeStatus, WantedSlice};
use crate::inventory::is_idle;
use crate::names::{GpuUuid, PodUid, SliceId};
use crate::packing::{Placed, Source};
use crate::planner::{Observed, Obstacle, Plan, check, plan};
use std::collections::BTreeSet;

/// The slices that the node should have once the leader of `epoch` has reserved the proposal's places, or the reason
/// against it.
pub fn accept(
    desired: &GpuNodeSpec,
    proposal: &Proposal,
    epoch: u64,
    observed: &Observed,
    status: &GpuNodeStatus,
) -> Result<GpuNodeSpec, Rejection> {
    if proposal.places.is_empty() {
        return Err(Rejection::Unreadable("the proposal names no place".to_owned()));
    }
    let mut used = BTreeSet::new();
    for place in &proposal.places {
        for id in ids(&place.source) {
            if !used.insert(id) {
                return Err(Rejection::Taken(format!("slice {id} is named twice")));
            }
            usable(desired, place, id, status)?;
        }
    }
    let mut next = apply(desired, proposal, epoch);
    let twice = |place: &Placed| compute_instance_twice(&next, place, &proposal.owner.uid);
    if let Some(slice) = proposal.places.iter().find_map(twice) {
        return Err(Rejection::Taken(format!("its compute instance is that of slice {}", slice.id)));
    }
    let plan = plan(observed, &next.slices);
    let gpus: BTreeSet<&GpuUuid> = proposal.places.iter().map(|place| &place.gpu).collect();
    if let Some((id, obstacle)) = unreachable(&next, &gpus, &plan) {
        return Err(Rejection::Taken(format!("slice {id} cannot be made: {obstacle}")));
    }
    check(observed, &next.slices, &plan).map_err(|violation| Rejection::Taken(violation.to_string()))?;
    // Idle slices that were never made and now cannot be made are dropped. Otherwise a leader would count them as
    // capacity and propose them in vain.
    let is_dropped = |slice: &WantedSlice| {
        let is_refused = plan.refused.iter().any(|(id, _)| *id == slice.id);
        slice.reservation.is_none() && gpus.contains(&slice.gpu) && is_refused
    };
    // The plan finds the instance of a new place already there if a pod that is gone still holds it. That slice must
    // stay, because its containers run.
    if let Some(held) = next.slices.iter().find(|slice| is_dropped(slice) && !is_idle(slice, status)) {
        return Err(in_use(&held.id));
    }
    next.slices.retain(|slice| !is_dropped(slice));
    Ok(next)
}

/// The idle slices that a place reuses or destroys.
fn ids(source: &Source) -> &[SliceId] {
    match source {
        Source::Idle(id) => std::slice::from_ref(id),
        Source::Cut(destroyed) => destroyed,
    }
}

/// Whether a place may reuse or destroy a slice: it must be desired, unreserved, and what the leader expects.
fn usable(
    desired: &GpuNodeSpec,
    place: &Placed,
    id: &SliceId,
    status: &GpuNodeStatus,
) -> Result<(), Rejection> {
    let slice = desired.slices.iter().find(|slice| slice.id == *id);
    let slice = slice.ok_or_else(|| Rejection::Taken(format!("slice {id} is gone")))?;
    let is_meant = |slice: &WantedSlice| match place.source {
        Source::Idle(_) => slice.gpu == place.gpu && slice.shape == place.shape,
        Source::Cut(_) => slice.gpu == place.gpu,
    };
    if !is_meant(slice) {
        return Err(Rejection::Taken(format!("slice {id} is {} of {}", slice.shape, slice.gpu)));
    }
    if !is_idle(slice, status) {
        return Err(in_use(id));
    }
    Ok(())
}

fn in_use(id: &SliceId) -> Rejection {
    Rejection::Taken(format!("slice {id} is in use"))
}

/// Another slice that uses the compute instance of this place. It must be checked here, because the planner gives an
/// existing instance to each slice that asks for it. An idle slice in the way does not count, because the proposal
/// names it for reuse or destruction.
fn compute_instance_twice<'n>(
    next: &'n GpuNodeSpec,
    place: &Placed,
    owner: &PodUid,
) -> Option<&'n WantedSlice> {
    place.shape.mig_part().compute()?;
    let same = || next.slices.iter().filter(|s| s.gpu == place.gpu && s.shape == place.shape);
    let uid = |slice: &'n WantedSlice| slice.reservation.as_ref().map(|r| &r.uid);
    // The pod's own slice is one of them. Two of its own mean that two of its places are the same.
    same().find(|slice| uid(slice) != Some(owner)).or_else(|| same().nth(1))
}

/// A reserved slice on one of the proposal's GPUs that the plan does not reach. Other GPUs do not matter, because each
/// GPU is planned by itself. It may also be an older reservation that cannot be cut at present. Then the GPU accepts no
/// new one, because both might get the same place.
fn unreachable<'p>(
    next: &GpuNodeSpec,
    gpus: &BTreeSet<&GpuUuid>,
    plan: &'p Plan,
) -> Option<&'p (SliceId, Obstacle)> {
    let is_concerned = |slice: &WantedSlice| slice.reservation.is_some() && gpus.contains(&slice.gpu);
    let concerned: BTreeSet<&SliceId> =
        next.slices.iter().filter(|s| is_concerned(s)).map(|s| &s.id).collect();
    plan.refused.iter().find(|(id, _)| concerned.contains(id))
}
