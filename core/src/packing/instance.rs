//! The best place on one GPU for a GPU instance, for a compute instance, or for a replica of a GPU instance.

use super::exacting::suffices;
use super::fit::{Candidate, Source};
use super::{Cost, Fleet};
use crate::contract::{ContainerRequest, MigPart, Shape};
use crate::inventory::GpuInventory;
use crate::mig::{ComputeGeometry, ComputeInstance, ComputeProfile, Instance, Profile};
use crate::names::SliceId;
use crate::resource::ResourceName;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The cheapest place for `request` on `gpu`; `None` if there is none.
pub(super) fn candidate(gpu: &GpuInventory, request: &ContainerRequest, fleet: &Fleet) -> Option<Candidate> {
    let (held, idle) = (gpu.taken_instances(), gpu.idle_instances());
    let (instance, choice, destroyed) = fleet.choose(&gpu.table, held, idle, request)?;
    let shape = Shape::mig(instance);
    if let Some((id, _)) = gpu.idle().find(|(_, idle)| *idle == shape).filter(|_| destroyed.is_empty()) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: choice.cost });
    }
    let in_the_way =
        |idle: &Instance| destroyed.contains(idle) || idle.placement.overlaps(instance.placement);
    // Idle shares from before MIG mode can serve no pod, so they go too.
    let must_go = |shape: &Shape| shape.instance().is_none_or(|idle| in_the_way(&idle));
    let gone: Vec<SliceId> =
        gpu.idle().filter(|(_, shape)| must_go(shape)).map(|(id, _)| id.clone()).collect();
    Some(Candidate { shape, source: Source::Cut(gone), cost: choice.cost })
}

/// The cheapest place for a compute instance: in a GPU instance that others already share, otherwise in a new one.
pub(super) fn part(
    gpu: &GpuInventory,
    profile: ComputeProfile,
    request: &ContainerRequest,
    fleet: &Fleet,
) -> Option<Candidate> {
    if !gpu.rule.compute_instances {
        return None;
    }
    let first =
        MigPart::Compute(ComputeInstance { start: *profile.starts().first()?, compute: profile.compute() });
    let beside = |instance| Some(((), beside(gpu, instance, profile)?));
    shared_out(gpu, (ResourceName::Compute(profile), profile.gpu_profile()), first, request, beside, fleet)
}

/// The cheapest place for a replica: on the GPU instance with the most pods that has a replica left, otherwise on a new
/// one. A request with a compute minimum gets none, because pods that take turns have no compute of their own at each
/// moment. The memory is what the others leave.
pub(super) fn replica(
    gpu: &GpuInventory,
    profile: Profile,
    request: &ContainerRequest,
    fleet: &Fleet,
) -> Option<Candidate> {
    let most = gpu.rule.mig.time_slicing?.get();
    let beside = |instance| turn(gpu, instance, most);
    let first = MigPart::Replica { replica: 0 };
    shared_out(gpu, (ResourceName::MigReplica(profile), profile), first, request, beside, fleet)
}

/// A place on a shared GPU instance, with the idle slices that must go for it.
type Beside = (Shape, Vec<SliceId>);

/// The cheapest place for a slice of this name on a GPU instance of this profile. An instance that is already shared
/// comes first: among those where `beside` finds a place the least one. Otherwise `first` of a new instance is taken.
fn shared_out<K: Ord>(
    gpu: &GpuInventory,
    (name, profile): (ResourceName, Profile),
    first: MigPart,
    request: &ContainerRequest,
    beside: impl Fn(Instance) -> Option<(K, Beside)>,
    fleet: &Fleet,
) -> Option<Candidate> {
    // Memory and compute of a slice are the same at each place.
    let placement = gpu.table.entry(profile)?.placements().next()?;
    if !suffices(gpu, Shape::from_instance(Instance { profile, placement }, first), request) {
        return None;
    }
    let shared = gpu.taken().filter(|shape| shape.mig_part().shares_with(first));
    let shared = shared.filter_map(Shape::instance).filter(|instance| instance.profile == profile);
    if let Some((_, (shape, gone))) = shared.filter_map(beside).min() {
        let idle = gpu.idle().find(|(_, idle)| *idle == shape).map(|(id, _)| id.clone());
        let source = idle.map_or(Source::Cut(gone), Source::Idle);
        return Some(Candidate { shape, source, cost: Cost::default() });
    }
    let place = candidate(gpu, &ContainerRequest::exact(profile), fleet)?;
    let same = gpu.idle().filter(|(_, shape)| shape.keeps(name));
    if let Some((id, shape)) = same.min_by_key(|(_, shape)| *shape) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: place.cost });
    }
    let shape = Shape::from_instance(place.shape.instance()?, first);
    let source = match place.source {
        // The whole instance is idle. The plan destroys its slice; replicas use the instance as it is, compute
        // instances need a new one.
        Source::Idle(id) => Source::Cut(vec![id]),
        cut @ Source::Cut(_) => cut,
    };
    Some(Candidate { shape, source, cost: place.cost })
}

/// A replica on a GPU instance that at most `most` pods share. Instances with the most pods come first, and idle
/// replicas before new ones.
fn turn(gpu: &GpuInventory, instance: Instance, most: u8) -> Option<(Reverse<usize>, Beside)> {
    let number = |shape: Shape| shape.replica().filter(|_| shape.instance() == Some(instance));
    let taken: BTreeSet<u8> = gpu.taken().filter_map(number).collect();
    if taken.len() >= usize::from(most) {
        return None;
    }
    let idle: BTreeSet<u8> = gpu.idle().filter_map(|(_, shape)| number(shape)).collect();
    let free = |replica: &u8| !taken.contains(replica);
    let replica = idle.iter().copied().find(free).or_else(|| (0..=u8::MAX).find(free))?;
    let shape = Shape::from_instance(instance, MigPart::Replica { replica });
    Some((Reverse(taken.len()), (shape, Vec::new())))
}

/// The first place for another compute instance in a shared GPU instance, with the idle ones that must go for it.
fn beside(gpu: &GpuInventory, instance: Instance, profile: ComputeProfile) -> Option<Beside> {
    let part_here = |shape: Shape| shape.part().filter(|_| shape.instance() == Some(instance));
    let geometry =
        ComputeGeometry::from_instances(instance.profile, gpu.taken().filter_map(part_here)).ok()?;
    let free = |start: &&u8| geometry.clone().place(profile.compute(), **start).is_ok();
    let part = ComputeInstance { start: *profile.starts().iter().find(free)?, compute: profile.compute() };
    let idle = gpu.idle().filter(|(_, shape)| part_here(*shape).is_some_and(|p| p.overlaps(part)));
    let shape = Shape::from_instance(instance, MigPart::Compute(part));
    Some((shape, idle.map(|(id, _)| id.clone()).collect()))
}
