//! The best place for a GPU instance, or a compute instance of one, on one GPU of a node.

use super::fit::{Candidate, Source};
use super::mig::has_compute;
use super::{Cost, Fleet};
use crate::contract::{ContainerRequest, Shape};
use crate::inventory::GpuInventory;
use crate::mig::{ComputeGeometry, ComputeInstance, ComputeProfile, Instance};
use crate::names::SliceId;
use crate::resource::ResourceName;

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
    let memory = |least| gpu.table.entry(profile.of()).is_some_and(|entry| entry.memory >= least);
    let suffices = request.memory.is_none_or(memory)
        && request.compute.is_none_or(|least| has_compute(&gpu.table, profile.compute(), least));
    if !gpu.rule.compute_instances || !suffices {
        return None;
    }
    let shared = gpu.taken().filter(|shape| shape.part().is_some()).filter_map(Shape::instance);
    let shared = shared.filter(|instance| instance.profile == profile.of());
    if let Some((shape, gone)) = shared.filter_map(|instance| beside(gpu, instance, profile)).min() {
        let idle = gpu.idle().find(|(_, idle)| *idle == shape).map(|(id, _)| id.clone());
        let source = idle.map_or(Source::Cut(gone), Source::Idle);
        return Some(Candidate { shape, source, cost: Cost::default() });
    }
    let place = candidate(gpu, &ContainerRequest::exact(profile.of()), fleet)?;
    let same = gpu.idle().filter(|(_, shape)| shape.keeps(ResourceName::Compute(profile)));
    if let Some((id, shape)) = same.min_by_key(|(_, shape)| *shape) {
        return Some(Candidate { shape, source: Source::Idle(id.clone()), cost: place.cost });
    }
    let (instance, start) = (place.shape.instance()?, *profile.starts().first()?);
    let shape = in_part(instance, ComputeInstance { start, compute: profile.compute() });
    let source = match place.source {
        // The GPU instance is made anew, for it was not shared.
        Source::Idle(id) => Source::Cut(vec![id]),
        cut @ Source::Cut(_) => cut,
    };
    Some(Candidate { shape, source, cost: place.cost })
}

/// The first place for another part of a GPU instance that is shared, and the idle parts that go for it.
fn beside(gpu: &GpuInventory, instance: Instance, profile: ComputeProfile) -> Option<(Shape, Vec<SliceId>)> {
    let of = |shape: &Shape| shape.instance() == Some(instance);
    let taken = gpu.taken().filter(of).filter_map(Shape::part);
    let geometry = ComputeGeometry::with(instance.profile, taken).ok()?;
    let free = |start: &&u8| geometry.clone().place(profile.compute(), **start).is_ok();
    let part = ComputeInstance { start: *profile.starts().iter().find(free)?, compute: profile.compute() };
    let idle = gpu.idle().filter(|(_, shape)| of(shape) && shape.part().is_some_and(|p| p.overlaps(part)));
    Some((in_part(instance, part), idle.map(|(id, _)| id.clone()).collect()))
}

fn in_part(instance: Instance, part: ComputeInstance) -> Shape {
    let (profile, placement) = (instance.profile, instance.placement);
    Shape::Mig { profile, start: placement.start, size: placement.size, part: Some(part) }
}
