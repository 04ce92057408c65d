//! Plans for one GPU with MIG mode off: shares, and the whole GPU.

use super::model::{ObservedGpu, Obstacle, Plan, Step};
use crate::contract::{MpsMemory, Shape, WantedSlice};
use crate::kind::Kind;
use crate::names::SliceId;
use crate::units::MemoryMib;

/// Ends the shares that no slice asks for, and starts the missing ones for which there is room beside what stays.
pub(super) fn plan(gpu: &ObservedGpu, wanted: &[&WantedSlice], plan: &mut Plan) {
    let is_wanted = |id: &SliceId| wanted.iter().any(|w| w.id == *id);
    let (ended, kept): (Vec<_>, Vec<_>) = gpu.shares.iter().partition(|s| !s.held && !is_wanted(&s.id));
    plan.steps.extend(ended.into_iter().map(|s| Step::End { gpu: gpu.uuid.clone(), id: s.id.clone() }));
    let mut shapes: Vec<Shape> = kept.iter().map(|s| s.shape).collect();
    let missing =
        wanted.iter().filter(|w| w.shape.instance().is_none() && !kept.iter().any(|s| s.id == w.id));
    for slice in missing {
        if let Some(obstacle) = obstacle(gpu, &shapes, slice.shape) {
            plan.refused.push((slice.id.clone(), obstacle));
        } else {
            shapes.push(slice.shape);
            plan.steps.push(Step::Start { gpu: gpu.uuid.clone(), id: slice.id.clone(), shape: slice.shape });
        }
    }
}

fn obstacle(gpu: &ObservedGpu, others: &[Shape], shape: Shape) -> Option<Obstacle> {
    let kind = shape.kind();
    let most = if kind == Kind::Mps { gpu.allowed.mps_memory } else { MpsMemory::default() };
    let all = || others.iter().chain([&shape]);
    // The reserve that packing keeps free is not subtracted here, because shares that were reserved by a version
    // without a reserve must still start after a boot.
    let memory: MemoryMib = all().map(|s| s.memory_of(gpu.memory)).sum();
    let compute = all().fold(0, |sum: u64, s| sum.saturating_add(s.compute_of(gpu.memory)));
    if gpu.table.is_some() {
        Some(Obstacle::WrongMode)
    } else if !gpu.allowed.kinds.contains(&kind) {
        Some(Obstacle::NotAllowed(kind))
    } else if others.iter().any(|s| s.kind() != kind || kind == Kind::Whole) {
        Some(Obstacle::OtherKind)
    } else if gpu.allowed.one_size && kind == Kind::Mps && others.iter().any(|s| s.size() != shape.size()) {
        Some(Obstacle::OtherSize)
    } else if kind == Kind::Mps && gpu.allowed.mps_shares.is_some_and(|most| others.len() >= most as usize) {
        Some(Obstacle::TooManyShares)
    } else if memory > most.limit_for(gpu.memory) || shape.memory_of(gpu.memory) > gpu.memory {
        Some(Obstacle::NoMemory)
    } else if compute > gpu.memory.0.saturating_mul(most.percent()) {
        Some(Obstacle::NoCompute)
    } else {
        None
    }
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
