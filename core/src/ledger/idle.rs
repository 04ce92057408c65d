//! What the node's policy says of idle slices: what it allows no longer goes, and some are kept ready.

use super::new_id;
use crate::contract::{GpuNodeSpec, GpuNodeStatus, GpuRule, Shape, WantedSlice};
use crate::inventory::{NodeInventory, is_idle};
use crate::names::GpuUuid;
use crate::packing::{Fleet, warm};
use std::collections::BTreeSet;

/// Takes idle slices out of the spec that the node's policy does not allow, so that their GPU can change its mode or its
/// kind. Promised and held ones stay, and all while the agent does not serve. `None` if all is allowed.
#[must_use]
pub fn drop_disallowed(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> Option<GpuNodeSpec> {
    if !status.is_ready() {
        return None;
    }
    let is_allowed = |slice: &WantedSlice| {
        let gpu = status.gpus.iter().find(|gpu| gpu.uuid == slice.gpu);
        gpu.is_none_or(|gpu| allows(&spec.policy.rule(gpu.index, &gpu.uuid, &gpu.model), slice.shape))
    };
    let goes = |slice: &WantedSlice| is_idle(slice, status) && !is_allowed(slice);
    if !spec.slices.iter().any(goes) {
        return None;
    }
    let slices = spec.slices.iter().filter(|slice| !goes(slice)).cloned().collect();
    Some(GpuNodeSpec { slices, ..spec.clone() })
}

fn allows(rule: &GpuRule, shape: Shape) -> bool {
    rule.kinds.contains(&shape.kind()) && (shape.part().is_none() || rule.compute_instances)
}

/// Adds the idle slices that the node's policy wants kept ready and that are missing, as far as there is room without
/// destroying anything and not on GPUs that are `resting`. `None` if none is added.
#[must_use]
pub fn keep_warm(
    spec: &GpuNodeSpec,
    status: &GpuNodeStatus,
    resting: &BTreeSet<GpuUuid>,
    fleet: &Fleet,
) -> Option<GpuNodeSpec> {
    if spec.policy.warm.is_empty() || !status.is_ready() {
        return None;
    }
    let new = warm(NodeInventory::of(spec, status), &spec.policy.warm, resting, fleet);
    if new.is_empty() {
        return None;
    }
    let mut next = spec.clone();
    for (gpu, shape) in new {
        let id = new_id(&mut next);
        next.slices.push(WantedSlice { id, gpu, shape, reservation: None });
    }
    Some(next)
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
