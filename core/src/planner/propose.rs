//! The planner: it destroys the fewest slices that make room for the desired ones.

use super::model::{Observed, ObservedGpu, ObservedInstance, Obstacle, Plan, Step};
use super::{instances, shares};
use crate::contract::WantedSlice;

/// The steps that turn `observed` into `wanted`. Instances that no slice asks for stay until their place is needed.
#[must_use]
pub fn plan(observed: &Observed, wanted: &[WantedSlice]) -> Plan {
    let mut plan = Plan::default();
    for gpu in &observed.gpus {
        let here: Vec<_> = wanted.iter().filter(|w| w.gpu == gpu.uuid).collect();
        if let Some(mig) = gpu.allowed.switch_to.filter(|_| may_switch(gpu, &here)) {
            switch(gpu, mig, &mut plan);
            continue;
        }
        instances::plan(gpu, &here, &mut plan);
        shares::plan(gpu, &here, &mut plan);
    }
    for slice in wanted.iter().filter(|w| !observed.gpus.iter().any(|g| g.uuid == w.gpu)) {
        plan.refused.push((slice.id.clone(), Obstacle::NoSuchGpu(slice.gpu.clone())));
    }
    plan
}

/// Whether no slice of the GPU is held or reserved.
fn may_switch(gpu: &ObservedGpu, wanted: &[&WantedSlice]) -> bool {
    let held = gpu.instances.iter().any(ObservedInstance::is_held) || gpu.shares.iter().any(|s| s.held);
    !held && wanted.iter().all(|w| w.reservation.is_none())
}

/// Clears the GPU and switches its mode. Desired idle slices of the old mode are refused afterwards.
fn switch(gpu: &ObservedGpu, mig: bool, plan: &mut Plan) {
    let uuid = || gpu.uuid.clone();
    let instances = gpu.instances.iter();
    let replicas = gpu.instances.iter().flat_map(|i| &i.replicas);
    plan.steps.extend(replicas.map(|r| Step::End { gpu: uuid(), id: r.id.clone() }));
    plan.steps.extend(instances.map(|i| Step::Destroy { gpu: uuid(), instance: i.instance, part: None }));
    plan.steps.extend(gpu.shares.iter().map(|s| Step::End { gpu: uuid(), id: s.id.clone() }));
    plan.steps.push(Step::Switch { gpu: uuid(), mig });
}

#[cfg(test)]
#[path = "propose_tests.rs"]
mod tests;
