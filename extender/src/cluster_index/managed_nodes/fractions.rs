//! Ranks nodes for shares of GPUs: where one more share costs the fleet least, by what is left of each node's GPUs, CPU
//! and memory.
//!
//! Whether a node can serve a pod is decided elsewhere, by its reservations. This ranks those that can.

use super::IndexedNode;
use crate::cluster_index::node_objects::Machine;
use crate::objects::ask::Ask;
use crate::objects::compute::Compute;
use hashbrown::HashMap;
use kerf_core::contract::Shape;
use kerf_core::inventory::{GpuInventory, NodeInventory};
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::packing::Cost;
use kerf_core::packing::fraction::{
    GpuDemand, GpuMilli, GpuSet, ModelSet, Models, Node, NodeId, Nodes, Part, Request, Sharing,
};
use kerf_core::units::{MemoryMib, SizeGb};
use std::collections::BTreeMap;

/// The cost of a node that can serve a share by its reservations but has no CPU or memory left by these figures. Such a
/// node comes last.
const LAST: Cost = Cost(i64::MAX / 4);

/// The nodes with shared GPUs.
#[derive(Debug, Default)]
pub(super) struct Fractions {
    nodes: Nodes,
    models: Models,
    known: HashMap<NodeName, Known>,
    /// How many nodes have GPUs of each size.
    sizes: BTreeMap<MemoryMib, usize>,
}

#[derive(Debug)]
struct Known {
    id: NodeId,
    /// The size of the shared GPUs. A node's GPUs are of one size except in odd cases.
    gpu: MemoryMib,
    /// The version of the node's view that this was computed from.
    seen: u64,
    machine: Machine,
}

impl Fractions {
    /// What a share costs on a node that can serve it; `None` if the shape is no share.
    pub(super) fn cost(
        &mut self,
        name: &NodeName,
        node: &IndexedNode,
        machine: Machine,
        shape: Shape,
        wants: Compute,
    ) -> Option<Cost> {
        let sharing = sharing(shape.kind())?;
        let size = shape.size();
        if self.known.get(name).is_none_or(|known| known.seen != node.seen() || known.machine != machine) {
            self.show(name, node, machine);
        }
        let known = self.known.get(name)?;
        let part = Part::new(milli(size, known.gpu), sharing);
        // A share of all of the memory counts as a whole GPU.
        let gpus = part.map_or(GpuDemand::whole(1), GpuDemand::Part);
        let request = Request { cpu: wants.cpu, memory: wants.memory, gpus, models: ModelSet::ANY };
        Some(self.nodes.costs(&request).on_node(known.id).unwrap_or(LAST))
    }

    /// Updates the demand that prices are based on: a pod asks for this share.
    pub(super) fn learn(&mut self, (kind, size): (Kind, SizeGb), wants: Compute) {
        let Some(sharing) = sharing(kind) else { return };
        let Some((gpu, _)) = self.sizes.first_key_value() else { return };
        let Some(gpus) = Part::new(milli(size, *gpu), sharing).map(GpuDemand::Part) else { return };
        self.nodes.learn(&Request { cpu: wants.cpu, memory: wants.memory, gpus, models: ModelSet::ANY });
    }

    pub(super) fn remove(&mut self, name: &NodeName) {
        if let Some(known) = self.known.remove(name) {
            self.nodes.remove(known.id);
            self.forget_size(known.gpu);
        }
    }

    fn forget_size(&mut self, gpu: MemoryMib) {
        if let Some(count) = self.sizes.get_mut(&gpu) {
            *count -= 1;
            if *count == 0 {
                self.sizes.remove(&gpu);
            }
        }
    }

    fn show(&mut self, name: &NodeName, node: &IndexedNode, machine: Machine) {
        let made = self.node(node.inventory(), machine);
        let Some((made, gpu)) = made else { return self.remove(name) };
        let seen = node.seen();
        *self.sizes.entry(gpu).or_default() += 1;
        if let Some(known) = self.known.get_mut(name) {
            let before = std::mem::replace(&mut known.gpu, gpu);
            (known.seen, known.machine) = (seen, machine);
            self.nodes.set(known.id, made);
            self.forget_size(before);
        } else {
            let id = self.nodes.add(made);
            self.known.insert(name.clone(), Known { id, gpu, seen, machine });
        }
    }

    /// A node with its shared GPUs and what is left of it, and the size of these GPUs.
    fn node(&mut self, inventory: &NodeInventory, machine: Machine) -> Option<(Node, MemoryMib)> {
        let shared = |gpu: &&GpuInventory| gpu.kinds.iter().any(|kind| sharing(*kind).is_some());
        let gpus: Vec<&GpuInventory> = inventory.gpus.iter().filter(shared).collect();
        let first = gpus.first()?;
        let model = self.models.intern(&first.model).ok()?;
        let (size, left) = (machine.size, machine.left());
        let mut node = Node::new(size.cpu, size.memory, model, gpus.len()).with_left(left.cpu, left.memory);
        for (index, gpu) in gpus.iter().enumerate() {
            for request in gpu.taken().map(|shape| taken(shape, gpu.for_shares())) {
                // More than fits cannot have been reserved. If it is reported anyway, the ranking is as good as it can
                // be.
                let _ = node.take(&request, GpuSet::from_iter([index]));
            }
        }
        Some((node, first.for_shares()))
    }
}

fn taken(shape: Shape, gpu: MemoryMib) -> Request {
    let part = sharing(shape.kind()).and_then(|sharing| Part::new(milli(shape.size(), gpu), sharing));
    let gpus = part.map_or(GpuDemand::whole(1), GpuDemand::Part);
    let nothing = Compute::default();
    Request { cpu: nothing.cpu, memory: nothing.memory, gpus, models: ModelSet::ANY }
}

/// The one slice that a pod asks for, if its kind is known before its place.
pub(crate) fn only_slice(ask: &Ask) -> Option<(Kind, SizeGb)> {
    match ask.document.containers.as_slice() {
        [only] if only.count == 1 => Some((only.only_kind()?, only.resource.size()?)),
        _ => None,
    }
}

/// How slices of this kind share a GPU; `None` if they do not.
pub(super) fn sharing(kind: Kind) -> Option<Sharing> {
    match kind {
        Kind::Mps => Some(Sharing::Mps),
        Kind::TimeSlicing => Some(Sharing::TimeSlicing),
        Kind::Mig | Kind::Whole => None,
    }
}

/// A share in thousandths of the GPU, rounded up.
fn milli(size: SizeGb, gpu: MemoryMib) -> GpuMilli {
    let milli = (size.share_memory().0 * 1000).div_ceil(gpu.0.max(1)).min(1000);
    GpuMilli(u16::try_from(milli).unwrap_or(1000))
}
