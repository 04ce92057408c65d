//! The policy's rule for a GPU.

use crate::gpu::Gpu;
use kerf_core::contract::{GpuRule, NodePolicy};

/// The first rule of the policy that selects the GPU, or the default rule.
pub(super) fn rule(policy: &NodePolicy, gpu: &Gpu) -> GpuRule {
    policy.rule(gpu.index, &gpu.uuid, gpu.pci_bus_id.as_ref(), &gpu.model)
}
