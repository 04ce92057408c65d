//! Pods with requirements beyond the slice's name: certain GPUs, an exact amount of memory, a part of the compute.
//!
//! The kubelet reads names only. It gives any free slice of a name to any container that requests the name.

use super::mig::has_compute;
use crate::contract::{ContainerRequest, Shape};
use crate::inventory::{GpuInventory, NodeInventory};
use crate::request::GpuSelection;
use crate::units::MemoryMib;

/// The requirements of a pod on one of its slices.
pub(super) struct Exacting<'r> {
    pub(super) gpus: &'r GpuSelection,
    pub(super) holding: &'r ContainerRequest,
}

impl Exacting<'_> {
    /// Whether another slice that is offered together with the pod's may not meet the requirements. Slices are offered
    /// together if they have the same model and shape (see [`offer`](crate::offer)).
    pub(super) fn may_get_another(&self, node: &NodeInventory, gpu: usize, shape: Shape) -> bool {
        // Most pods have no requirements, so they need no look at the other GPUs.
        let asks_for_more = self.holding.memory.is_some() || self.holding.compute.is_some();
        if self.gpus.uuids.is_empty() && self.gpus.not_uuids.is_empty() && !asks_for_more {
            return false;
        }
        let alike = |other: &&GpuInventory| other.model == node.gpus[gpu].model;
        let is_suitable = |other: &GpuInventory| {
            self.gpus.admits(&other.uuid, &other.model) && suffices(other, shape, self.holding)
        };
        node.gpus.iter().filter(alike).any(|other| !is_suitable(other))
    }
}

/// Whether a slice of this shape on this GPU has the memory and compute that a request asks for beyond its name.
pub(super) fn suffices(gpu: &GpuInventory, shape: Shape, request: &ContainerRequest) -> bool {
    request.memory.is_none_or(|least| memory(gpu, shape).is_none_or(|memory| memory >= least))
        && request.compute.is_none_or(|least| match shape {
            Shape::Mig { profile, part, .. } => {
                let slices = part.compute().map_or(profile.compute(), |part| part.compute);
                part.replica().is_none() && has_compute(&gpu.table, slices, least)
            }
            Shape::Mps { compute, .. } => compute.is_some_and(|compute| compute >= least),
            // A whole GPU has all its compute, and a time slice may use all of it.
            Shape::Whole { .. } | Shape::TimeSlicing { .. } => true,
        })
}

/// The usable memory of a slice of this shape; `None` if the GPU has no such slices.
fn memory(gpu: &GpuInventory, shape: Shape) -> Option<MemoryMib> {
    match shape {
        Shape::Mig { profile, .. } => gpu.table.entry(profile).map(|entry| entry.memory),
        Shape::Whole { .. } | Shape::Mps { .. } | Shape::TimeSlicing { .. } => {
            Some(shape.memory_of(gpu.memory))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::GpuNodeSpec;
    use crate::resource::ResourceName;
    use crate::testing::{h100_shape, node_status};
    use crate::units::{ComputePercent, SizeGb};

    #[test]
    fn a_slice_with_exactly_the_memory_suffices() {
        let node = NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(&["H100-80GB"]));
        let (gpu, shape) = (&node.gpus[0], h100_shape("1g.10gb", 0));
        let real = memory(gpu, shape).unwrap();
        let asks = |more| ContainerRequest {
            memory: Some(MemoryMib(real.0 + more)),
            ..ContainerRequest::for_slice(ResourceName::Whole, SizeGb(10))
        };
        assert!(suffices(gpu, shape, &asks(0)) && !suffices(gpu, shape, &asks(1)));
    }
    #[test]
    fn a_whole_gpu_and_a_time_slice_may_use_all_compute() {
        let node = NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(&["T4-16GB"]));
        let size_gb = SizeGb(4);
        let asked = ContainerRequest {
            compute: ComputePercent::new(100),
            ..ContainerRequest::for_slice(ResourceName::Whole, size_gb)
        };
        for (shape, enough) in [
            (Shape::Whole { size_gb }, true),
            (Shape::TimeSlicing { size_gb }, true),
            (Shape::Mps { size_gb, compute: None }, false),
            (Shape::Mps { size_gb, compute: ComputePercent::new(99) }, false),
            (Shape::Mps { size_gb, compute: ComputePercent::new(100) }, true),
        ] {
            assert_eq!(suffices(&node.gpus[0], shape, &asked), enough, "{shape}");
        }
    }
}
