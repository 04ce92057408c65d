//! Idle slices by the node's policy: disallowed ones are removed, those of a layout always exist, and warm ones are
//! kept ready.

use super::new_id;
use crate::contract::{GpuNodeSpec, GpuNodeStatus, GpuRule, MigPart, NodePolicy, Shape, WantedSlice};
use crate::inventory::{GpuInventory, NodeInventory, is_idle};
use crate::kind::Kind;
use crate::names::{GpuUuid, SliceId};
use crate::packing::{self, Fleet, LayoutDifference, warm};
use std::collections::BTreeSet;

/// Removes idle slices that the node's policy does not allow, so that their GPU can change its mode or kind. Reserved
/// and held slices stay. `None` if all are allowed. The agent must have observed the whole node before.
#[must_use]
pub fn drop_disallowed(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> Option<GpuNodeSpec> {
    let is_allowed = |slice: &WantedSlice| {
        let gpu = status.gpus.iter().find(|gpu| gpu.uuid == slice.gpu);
        gpu.is_none_or(|gpu| {
            allows(&spec.policy.rule(gpu.index, &gpu.uuid, gpu.pci_bus_id.as_ref(), &gpu.model), slice.shape)
        })
    };
    let strange = strange(spec, status);
    let is_dropped =
        |slice: &WantedSlice| is_idle(slice, status) && (!is_allowed(slice) || strange.contains(&slice.id));
    if !spec.slices.iter().any(is_dropped) {
        return None;
    }
    let slices = spec.slices.iter().filter(|slice| !is_dropped(slice)).cloned().collect();
    Some(GpuNodeSpec { slices, ..spec.clone() })
}

/// Idle slices that are not in their GPU's layout.
fn strange(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> BTreeSet<SliceId> {
    if !lays_out(&spec.policy) {
        return BTreeSet::new();
    }
    let inventory = NodeInventory::from_spec(spec, status);
    let strange_slices = |gpu: &GpuInventory| {
        // While MIG mode is off, the MIG profiles of the GPU are unknown, and nothing exists that could be in the way.
        let is_off = gpu.rule.layout.kind() == Some(Kind::Mig) && gpu.table.is_empty();
        let layout = gpu.layout.as_ref().filter(|_| !is_off)?;
        Some(LayoutDifference::between(gpu, layout).strange.into_iter().cloned().collect::<Vec<_>>())
    };
    inventory.gpus.iter().filter_map(strange_slices).flatten().collect()
}

fn lays_out(policy: &NodePolicy) -> bool {
    policy.gpus.iter().any(|rule| !rule.layout.is_empty())
}

fn allows(rule: &GpuRule, shape: Shape) -> bool {
    let is_part_allowed = match shape.mig_part() {
        MigPart::Whole => true,
        MigPart::Compute(_) => rule.compute_instances,
        MigPart::Replica { .. } => rule.mig.time_slicing.is_some(),
    };
    rule.kinds.contains(&shape.kind()) && is_part_allowed
}

/// Adds the missing idle slices that the node's policy lays out or keeps warm, as far as there is room without
/// destroying anything. GPUs in `resting` are left out. `None` if nothing is added. The agent must have observed the
/// whole node before.
#[must_use]
pub fn keep_warm(
    spec: &GpuNodeSpec,
    status: &GpuNodeStatus,
    resting: &BTreeSet<GpuUuid>,
    fleet: &Fleet,
) -> Option<GpuNodeSpec> {
    let lays_out = lays_out(&spec.policy);
    if spec.policy.warm.is_empty() && !lays_out {
        return None;
    }
    let mut next = spec.clone();
    if lays_out {
        let inventory = NodeInventory::from_spec(spec, status);
        let gpus = inventory.gpus.iter().filter(|gpu| !resting.contains(&gpu.uuid));
        let missing = gpus.flat_map(|gpu| packing::missing(gpu).into_iter().map(|s| (gpu.uuid.clone(), s)));
        add_idle(&mut next, missing);
    }
    if !spec.policy.warm.is_empty() {
        // Warm slices come after the layout's, so that those count as warm too.
        let new = warm(NodeInventory::from_spec(&next, status), &spec.policy.warm, resting, fleet);
        add_idle(&mut next, new);
    }
    (next.slices.len() > spec.slices.len()).then_some(next)
}

fn add_idle(spec: &mut GpuNodeSpec, new: impl IntoIterator<Item = (GpuUuid, Shape)>) {
    for (gpu, shape) in new {
        let id = new_id(spec);
        spec.slices.push(WantedSlice { id, gpu, shape, reservation: None });
    }
}

#[cfg(test)]
#[path = "idle_tests.rs"]
mod tests;
