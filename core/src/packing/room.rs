//! How many more slices of a name one GPU holds: what the extender could promise of it, one pod after the other.

use super::Fleet;
use super::fit::{best, occupy};
use crate::contract::ContainerRequest;
use crate::inventory::{GpuInventory, NodeInventory};
use crate::request::Role;
use crate::resource::ResourceName;
use crate::units::{ComputePercent, SizeGb};

/// How many pods with one slice of `name` and `size` each, and with `compute` where that is asked for, could be promised one on
/// `gpu` before the next is refused.
#[must_use]
pub fn room(
    gpu: &GpuInventory,
    name: ResourceName,
    size: SizeGb,
    compute: Option<ComputePercent>,
    fleet: &Fleet,
) -> u32 {
    let request = ContainerRequest {
        name: String::new(),
        role: Role::App,
        size_gb: size,
        profile: None,
        count: 1,
        resource: name,
        kinds: Vec::new(),
        memory: None,
        compute,
        distinct_gpus: false,
    };
    let mut node = NodeInventory { gpus: vec![gpu.clone()], ..NodeInventory::default() };
    let mut count = 0;
    while let Ok((place, candidate)) = best(&node, &request, fleet, |_, _| true) {
        occupy(&mut node.gpus[place], &candidate);
        count += 1;
    }
    count
}
