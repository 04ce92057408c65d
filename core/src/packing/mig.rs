//! The best place for a GPU instance on one GPU.

use super::cost::{CUT, DESTROY, lost_capacity};
use super::fit::{Candidate, Source};
use crate::contract::{ContainerRequest, Shape};
use crate::inventory::GpuInventory;
use crate::mig::{Geometry, Instance, MigTable, Placement, Profile, ProfileEntry};
use crate::names::SliceId;

/// The cheapest place for `request` on `gpu`, where it has one.
pub(super) fn candidate(gpu: &GpuInventory, request: &ContainerRequest) -> Option<Candidate> {
    let taken = Geometry::of(&gpu.table, gpu.taken().filter_map(Shape::instance)).ok()?;
    let mut best: Option<Candidate> = None;
    for entry in suitable(&gpu.table, request) {
        for placement in entry.placements() {
            let Ok(after) = taken.clone().place(entry.profile, placement.start) else { continue };
            let loss = lost_capacity(&taken, &after, gpu.memory.nominal());
            let (shape, source) = source(gpu, request, entry.profile, placement);
            let work = match &source {
                Source::Idle(_) => 0,
                Source::Cut(destroyed) => CUT.0 + DESTROY.0 * u64::try_from(destroyed.len()).unwrap_or(0),
            };
            // Within one mask the entries come with the most compute first, so that an equal cost keeps it.
            let candidate = Candidate { shape, source, cost: loss + super::Cost(work) };
            if best.as_ref().is_none_or(|b| candidate.cost < b.cost) {
                best = Some(candidate);
            }
        }
    }
    best
}

/// The profiles that may serve the request: the one that the user wrote, or the plain ones that take the fewest memory
/// slices, most compute first (a name promises a minimum, and on the same mask compute is free).
fn suitable<'t>(table: &'t MigTable, request: &ContainerRequest) -> Vec<&'t ProfileEntry> {
    if let Some(profile) = request.profile {
        return table.entry(profile).into_iter().collect();
    }
    let fits =
        |e: &&ProfileEntry| request.resource.is_kept_by(e.profile) && e.profile.size() >= request.size_gb;
    let size = table.entries().iter().filter(fits).map(|e| e.size).min();
    let mut entries: Vec<_> = table.entries().iter().filter(fits).filter(|e| Some(e.size) == size).collect();
    entries.sort_by_key(|e| std::cmp::Reverse(e.profile.compute()));
    entries
}

/// An idle instance at the same place that serves as well, or a cut with the idle instances in its way.
fn source(
    gpu: &GpuInventory,
    request: &ContainerRequest,
    profile: Profile,
    place: Placement,
) -> (Shape, Source) {
    let mut destroyed: Vec<SliceId> = Vec::new();
    for (id, shape) in gpu.idle() {
        let Some(instance) = shape.instance() else {
            destroyed.push(id.clone());
            continue;
        };
        if instance.placement == place && serves(instance.profile, request) {
            return (shape, Source::Idle(id.clone()));
        }
        if instance.placement.overlaps(place) {
            destroyed.push(id.clone());
        }
    }
    destroyed.extend(compute_debt(gpu, profile, place, &destroyed));
    (Shape::mig(Instance { profile, placement: place }), Source::Cut(destroyed))
}

fn serves(profile: Profile, request: &ContainerRequest) -> bool {
    match request.profile {
        Some(exact) => profile == exact,
        None => request.resource.is_kept_by(profile) && profile.size() >= request.size_gb,
    }
}

/// Idle instances elsewhere that must go because the compute slices or the profile's maximum would not suffice.
fn compute_debt(
    gpu: &GpuInventory,
    profile: Profile,
    place: Placement,
    destroyed: &[SliceId],
) -> Vec<SliceId> {
    let mut staying: Vec<_> = gpu.idle().filter(|(id, _)| !destroyed.contains(id)).collect();
    let mut debt = Vec::new();
    loop {
        let idle = staying.iter().filter_map(|(_, shape)| shape.instance());
        let all = gpu.taken().filter_map(Shape::instance).chain(idle);
        if Geometry::of(&gpu.table, all).is_ok_and(|g| g.place(profile, place.start).is_ok()) {
            return debt;
        }
        match staying.pop() {
            Some((id, _)) => debt.push(id.clone()),
            None => return debt,
        }
    }
}
