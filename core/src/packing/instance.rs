//! The best place for a GPU instance on one GPU of a node.

use super::Fleet;
use super::fit::{Candidate, Source};
use crate::contract::{ContainerRequest, Shape};
use crate::inventory::GpuInventory;
use crate::mig::Instance;
use crate::names::SliceId;

/// The cheapest place for `request` on `gpu`, where it has one.
pub(super) fn candidate(gpu: &GpuInventory, request: &ContainerRequest, fleet: &Fleet) -> Option<Candidate> {
    let held = gpu.taken().filter_map(Shape::instance);
    let idle = gpu.idle().filter_map(|(_, shape)| shape.instance());
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
