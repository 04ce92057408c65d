//! The planner: the fewest destroys that make room for what is wanted.

use super::model::{Observed, ObservedGpu, Obstacle, Plan, Step};
use crate::contract::{Shape, WantedSlice};
use crate::mig::{Geometry, Instance};
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
    let (mut spare, kept): (Vec<_>, Vec<_>) =
        gpu.instances.iter().partition(|o| !o.held && !is_wanted(o.instance));
    let mut kept: Vec<Instance> = kept.into_iter().map(|o| o.instance).collect();
    let (mut destroys, mut creates) = (Vec::new(), Vec::new());
    for (id, instance) in missing {
        let alone = Geometry::of(table, kept.iter().copied());
        if let Err(illegal) = alone.and_then(|g| g.place(instance.profile, instance.placement.start)) {
            let held =
                gpu.instances.iter().any(|o| o.held && o.instance.placement.overlaps(instance.placement));
            plan.refused.push((id.clone(), if held { Obstacle::Held } else { Obstacle::Illegal(illegal) }));
            continue;
        }
        let overlapping = |o: &Instance| o.placement.overlaps(instance.placement);
        destroys.extend(spare.extract_if(.., |o| overlapping(&o.instance)).map(|o| o.instance));
        let fits = |spare: &[&super::ObservedInstance], kept: &[Instance]| {
            let all = kept.iter().copied().chain(spare.iter().map(|o| o.instance));
            Geometry::of(table, all)
                .is_ok_and(|g| g.place(instance.profile, instance.placement.start).is_ok())
        };
        while !fits(&spare, &kept) {
            match spare.pop() {
                Some(o) => destroys.push(o.instance),
                None => break,
            }
        }
        kept.push(instance);
        creates.push((id.clone(), instance));
    }
    let gpu = &gpu.uuid;
    plan.steps.extend(destroys.into_iter().map(|instance| Step::Destroy { gpu: gpu.clone(), instance }));
    plan.steps.extend(creates.into_iter().map(|(id, instance)| Step::Create {
        gpu: gpu.clone(),
        instance,
        id,
    }));
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
