//! The planner: the fewest destroys that make room for what is wanted.

use super::model::{Observed, ObservedGpu, Obstacle, Plan, Step};
use crate::contract::{Shape, WantedSlice};
use crate::mig::{Geometry, Illegal, Instance, MigTable};
use crate::names::SliceId;
use crate::units::MemoryMib;

/// The steps that turn `observed` into `wanted`. Instances that nobody wants stay until their place is wanted.
#[must_use]
pub fn plan(observed: &Observed, wanted: &[WantedSlice]) -> Plan {
    let mut plan = Plan::default();
    for gpu in &observed.gpus {
        let here: Vec<_> = wanted.iter().filter(|w| w.gpu == gpu.uuid).collect();
        plan_instances(gpu, &here, &mut plan);
        plan_shares(gpu, &here, &mut plan);
    }
    for slice in wanted.iter().filter(|w| !observed.gpus.iter().any(|g| g.uuid == w.gpu)) {
        plan.refused.push((slice.id.clone(), Obstacle::NoSuchGpu(slice.gpu.clone())));
    }
    plan
}

fn plan_instances(gpu: &ObservedGpu, wanted: &[&WantedSlice], plan: &mut Plan) {
    let wanted: Vec<(&SliceId, Instance)> =
        wanted.iter().filter_map(|w| Some((&w.id, w.shape.instance()?))).collect();
    let missing: Vec<_> =
        wanted.iter().filter(|(_, i)| !gpu.instances.iter().any(|o| o.instance == *i)).copied().collect();
    let Some(table) = &gpu.table else {
        plan.refused.extend(missing.into_iter().map(|(id, _)| (id.clone(), Obstacle::WrongMode)));
        return;
    };
    let is_wanted = |instance: Instance| wanted.iter().any(|(_, i)| *i == instance);
    // Idle instances that nobody wants, removable one by one; everything else stays.
    let (spare, kept): (Vec<_>, Vec<_>) =
        gpu.instances.iter().partition(|o| !o.held && !is_wanted(o.instance));
    let mut kept: Vec<Instance> = kept.into_iter().map(|o| o.instance).collect();
    let mut creates = Vec::new();
    for (id, instance) in missing {
        let alone = Geometry::of(table, kept.iter().copied());
        if let Err(illegal) = alone.and_then(|g| g.place(instance.profile, instance.placement.start)) {
            let held =
                gpu.instances.iter().any(|o| o.held && o.instance.placement.overlaps(instance.placement));
            plan.refused.push((id.clone(), if held { Obstacle::Held } else { Obstacle::Illegal(illegal) }));
            continue;
        }
        kept.push(instance);
        creates.push((id.clone(), instance));
    }
    let spare: Vec<Instance> = spare.into_iter().map(|o| o.instance).collect();
    let destroys = in_the_way(table, &kept, &creates, spare);
    let gpu = &gpu.uuid;
    plan.steps.extend(destroys.into_iter().map(|instance| Step::Destroy { gpu: gpu.clone(), instance }));
    plan.steps.extend(creates.into_iter().map(|(id, instance)| Step::Create {
        gpu: gpu.clone(),
        instance,
        id,
    }));
}

/// The fewest of the spare instances that must go for `kept`, what is created included, to be there together: those on
/// the same memory slices, and others while they claim what only so many instances can have.
fn in_the_way(
    table: &MigTable,
    kept: &[Instance],
    creates: &[(SliceId, Instance)],
    mut spare: Vec<Instance>,
) -> Vec<Instance> {
    let overlaps = |o: &Instance| creates.iter().any(|(_, i)| o.placement.overlaps(i.placement));
    let mut destroys: Vec<Instance> = spare.extract_if(.., |o| overlaps(o)).collect();
    while let Some(illegal) = first_illegal(table, kept.iter().chain(&spare)) {
        let claims = |o: &&Instance| match illegal {
            Illegal::TooMany(profile) => o.profile == profile,
            Illegal::MediaTaken(_) => o.profile.claims_media(),
            Illegal::NoSuchProfile(_)
            | Illegal::NoSuchStart(..)
            | Illegal::Taken(_)
            | Illegal::NoCompute(_) => true,
        };
        // Of compute slices the largest instance gives back the most.
        let Some(next) = spare.iter().filter(claims).max_by_key(|o| o.profile.compute()).copied() else {
            break;
        };
        spare.retain(|o| *o != next);
        destroys.push(next);
    }
    destroys
}

/// Why the instances cannot be there together, compute slices last: what frees something else frees compute as well.
fn first_illegal<'i>(table: &MigTable, all: impl Iterator<Item = &'i Instance>) -> Option<Illegal> {
    let (mut geometry, mut no_compute) = (Geometry::empty(table), None);
    for instance in all {
        match geometry.clone().place(instance.profile, instance.placement.start) {
            Ok(next) => geometry = next,
            Err(illegal @ Illegal::NoCompute(_)) => no_compute = Some(illegal),
            Err(illegal) => return Some(illegal),
        }
    }
    no_compute
}

fn plan_shares(gpu: &ObservedGpu, wanted: &[&WantedSlice], plan: &mut Plan) {
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

fn obstacle(gpu: &ObservedGpu, shapes: &[Shape], shape: Shape) -> Option<Obstacle> {
    let used: MemoryMib = shapes.iter().map(|s| s.size().share_memory()).sum();
    if gpu.table.is_some() {
        Some(Obstacle::WrongMode)
    } else if shapes.iter().any(|s| s.kind() != shape.kind()) {
        Some(Obstacle::OtherKind)
    } else if used.0 + shape.size().share_memory().0 > gpu.memory.0 {
        Some(Obstacle::NoMemory)
    } else {
        None
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
