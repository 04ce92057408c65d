//! The policy's rule for a GPU.

use crate::gpu::Gpu;
use kerf_core::contract::{GpuRule, NodePolicy};
use kerf_core::mig::catalog;

/// The first rule of the policy that selects the GPU, or the default rule.
pub(super) fn rule(policy: &NodePolicy, gpu: &Gpu) -> GpuRule {
    let model = catalog::short_name(&gpu.product, gpu.memory);
    policy.rule(gpu.index, &gpu.uuid, gpu.pci_bus_id.as_ref(), &model)
}
