//! The best place for a GPU instance, or a compute instance or a replica of one, on one GPU of a node.

use super::fit::{Candidate, Source};
use super::mig::has_compute;
use super::{Cost, Fleet};
use crate::contract::{ContainerRequest, MigPart, Shape};
use crate::inventory::GpuInventory;
use crate::mig::{ComputeGeometry, ComputeInstance, ComputeProfile, Instance, Profile};
use crate::names::SliceId;
use crate::resource::ResourceName;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The cheapest place for `request` on `gpu`, where it has one.
pub(super) fn candidate(gpu: &GpuInventory, request: &ContainerRequest, fleet: &Fleet) -> Option<Candidate> {
    let (held, idle) = (gpu.taken_instances(), gpu.idle_instances());
    let (instance, choice, destroyed) = fleet.choose(&gpu.table, held, idle, request)?;
    let shape = Shape::mig(instance);
    if let Some((id, _)) = gpu.idle().find(|(_, idle)| *idle == shape).filter(|_| destroyed.is_empty()) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: choice.cost });
    }
    let in_the_way =
        |idle: &Instance| destroyed.contains(idle) || idle.placement.overlaps(instance.placement);
    // Idle shares of a GPU that is in MIG mode by now are nobody's loss.
    let goes = |shape: &Shape| shape.instance().is_none_or(|idle| in_the_way(&idle));
    let gone: Vec<SliceId> = gpu.idle().filter(|(_, shape)| goes(shape)).map(|(id, _)| id.clone()).collect();
    Some(Candidate { shape, source: Source::Cut(gone), cost: choice.cost })
}

/// The cheapest place for a compute instance: in a GPU instance that others share already, or else in a new one.
pub(super) fn part(
    gpu: &GpuInventory,
    profile: ComputeProfile,
    request: &ContainerRequest,
    fleet: &Fleet,
) -> Option<Candidate> {
    let suffices = has_memory(gpu, profile.of(), request)
        && request.compute.is_none_or(|least| has_compute(&gpu.table, profile.compute(), least));
    if !gpu.rule.compute_instances || !suffices {
        return None;
    }
    let first =
        MigPart::Compute(ComputeInstance { start: *profile.starts().first()?, compute: profile.compute() });
    let beside = |instance| Some((0, beside(gpu, instance, profile)?));
    shared_out(gpu, (ResourceName::Compute(profile), profile.of()), first, beside, fleet)
}

/// The cheapest place for a replica: on the GPU instance that most pods share of those with a turn left, or else on a new one.
/// Who has a turn has no compute always, and all of the memory that the others leave.
pub(super) fn replica(
    gpu: &GpuInventory,
    profile: Profile,
    request: &ContainerRequest,
    fleet: &Fleet,
) -> Option<Candidate> {
    let most = gpu.rule.mig.time_slicing?.get();
    if request.compute.is_some() || !has_memory(gpu, profile, request) {
        return None;
    }
    let beside = |instance| turn(gpu, instance, most);
    let first = MigPart::Replica { replica: 0 };
    shared_out(gpu, (ResourceName::MigReplica(profile), profile), first, beside, fleet)
}

/// Whether a GPU instance of this profile has the memory that is asked for.
fn has_memory(gpu: &GpuInventory, profile: Profile, request: &ContainerRequest) -> bool {
    let has = |least| gpu.table.entry(profile).is_some_and(|entry| entry.memory >= least);
    request.memory.is_none_or(has)
}

/// A place on a GPU instance that is shared already, and the idle slices that go for it.
type Beside = (Shape, Vec<SliceId>);

/// The cheapest place for a slice of this name on a GPU instance of this profile: on one that is shared already, where `beside`
/// has a place, the least first; or else the `first` of a new one.
fn shared_out<K: Ord>(
    gpu: &GpuInventory,
    (name, of): (ResourceName, Profile),
    first: MigPart,
    beside: impl Fn(Instance) -> Option<(K, Beside)>,
    fleet: &Fleet,
) -> Option<Candidate> {
    let shared = gpu.taken().filter(|shape| shape.mig_part().shares_with(first));
    let shared = shared.filter_map(Shape::instance).filter(|instance| instance.profile == of);
    if let Some((_, (shape, gone))) = shared.filter_map(beside).min() {
        let idle = gpu.idle().find(|(_, idle)| *idle == shape).map(|(id, _)| id.clone());
        let source = idle.map_or(Source::Cut(gone), Source::Idle);
        return Some(Candidate { shape, source, cost: Cost::default() });
    }
    let place = candidate(gpu, &ContainerRequest::exact(of), fleet)?;
    let same = gpu.idle().filter(|(_, shape)| shape.keeps(name));
    if let Some((id, shape)) = same.min_by_key(|(_, shape)| *shape) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: place.cost });
    }
    let shape = Shape::of_instance(place.shape.instance()?, first);
    let source = match place.source {
        // It lies idle as a whole. Replicas share it as it is; for compute instances it is made anew.
        Source::Idle(id) => Source::Cut(vec![id]),
        cut @ Source::Cut(_) => cut,
    };
    Some(Candidate { shape, source, cost: place.cost })
}

/// A turn on a GPU instance of which `most` pods may have one: the fewer are left the better. What lies idle is taken first.
fn turn(gpu: &GpuInventory, instance: Instance, most: u8) -> Option<(Reverse<usize>, Beside)> {
    let number = |shape: Shape| shape.replica().filter(|_| shape.instance() == Some(instance));
    let taken: BTreeSet<u8> = gpu.taken().filter_map(number).collect();
    if taken.len() >= usize::from(most) {
        return None;
    }
    let idle: BTreeSet<u8> = gpu.idle().filter_map(|(_, shape)| number(shape)).collect();
    let free = |replica: &u8| !taken.contains(replica);
    let replica = idle.iter().copied().find(free).or_else(|| (0..=u8::MAX).find(free))?;
    let shape = Shape::of_instance(instance, MigPart::Replica { replica });
    Some((Reverse(taken.len()), (shape, Vec::new())))
}

/// The first place for another part of a GPU instance that is shared, and the idle parts that go for it.
fn beside(gpu: &GpuInventory, instance: Instance, profile: ComputeProfile) -> Option<Beside> {
    let of = |shape: &Shape| shape.instance() == Some(instance);
    let taken = gpu.taken().filter(of).filter_map(Shape::part);
    let geometry = ComputeGeometry::with(instance.profile, taken).ok()?;
    let free = |start: &&u8| geometry.clone().place(profile.compute(), **start).is_ok();
    let part = ComputeInstance { start: *profile.starts().iter().find(free)?, compute: profile.compute() };
    let idle = gpu.idle().filter(|(_, shape)| of(shape) && shape.part().is_some_and(|p| p.overlaps(part)));
    let shape = Shape::of_instance(instance, MigPart::Compute(part));
    Some((shape, idle.map(|(id, _)| id.clone()).collect()))
}
