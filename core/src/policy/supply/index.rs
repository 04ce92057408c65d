//! The supply of each node, updated node by node. The supply of equal GPUs is computed once.

use super::fixed::StaticNodes;
use super::gpu::{Chip, GpuSupply};
use super::{Gpus, Supply};
use crate::contract::{GpuNodeSpec, GpuNodeStatus};
use crate::inventory::NodeInventory;
use crate::names::{GpuUuid, NodeName};
use crate::packing::Fleet;
use crate::static_node::StaticNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of sorts from which on the index drops those that no node has any longer.
const SORTS_LIMIT: usize = 64;

type NodeGpus = Arc<[(GpuUuid, Arc<GpuSupply>)]>;

pub(super) type NamedGpus = (Arc<NodeName>, NodeGpus);

/// The supply of the cluster, updated by watches of `GpuNodes` and Nodes.
#[derive(Debug, Default)]
pub struct SupplyIndex {
    nodes: BTreeMap<Arc<NodeName>, NodeGpus>,
    /// The offers of Nodes that NVIDIA's device plugin serves.
    statics: StaticNodes,
    /// Nodes that have a GpuNode, readable or not. They are never static, whatever their Node reports.
    managed: BTreeSet<NodeName>,
    /// Nodes that cannot run pods in user namespaces.
    without_users: Arc<BTreeSet<NodeName>>,
    /// Whether some agent has ever reported neutral names. It stays true, because an agent reports none while its
    /// kubelet restarts.
    knows_neutral: bool,
    sorts: Vec<(Chip, Arc<GpuSupply>)>,
    fleet: Fleet,
}

impl SupplyIndex {
    /// Sets the GPUs of a managed node, and returns whether the supply changed.
    pub fn show(&mut self, name: NodeName, spec: &GpuNodeSpec, status: &GpuNodeStatus) -> bool {
        let was_static = self.claim(name.clone());
        let inventory = NodeInventory::from_spec(spec, status);
        let known = status.gpus.iter().zip(&inventory.gpus);
        let supplies = known.map(|(status, gpu)| self.supply_of(Chip::from_gpu(status, gpu)));
        let supplies: Vec<_> = supplies.collect();
        let gpus: NodeGpus = status.gpus.iter().map(|gpu| gpu.uuid.clone()).zip(supplies).collect();
        let is_new = status.neutral_up_to.is_some() && !std::mem::replace(&mut self.knows_neutral, true);
        // `put` comes first, because it must run even if the supply changed for another reason.
        self.put(name, gpus) || was_static || is_new
    }

    fn put(&mut self, name: NodeName, gpus: NodeGpus) -> bool {
        let same = |before: &NodeGpus| {
            let pairs = || before.iter().zip(gpus.iter());
            before.len() == gpus.len() && pairs().all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1))
        };
        let is_other = !self.nodes.get(&name).is_some_and(same);
        if is_other {
            self.nodes.insert(Arc::new(name), gpus);
        }
        is_other
    }

    /// Records that a node has a GpuNode, and returns whether it was static until now.
    pub fn claim(&mut self, name: NodeName) -> bool {
        let is_static = self.statics.contains_key(&name);
        self.managed.insert(name) && is_static
    }

    /// Sets the offer of a Node that NVIDIA's device plugin serves; `None` if it offers nothing. Returns whether the
    /// supply changed.
    pub fn show_static(&mut self, name: NodeName, node: Option<StaticNode>) -> bool {
        if self.statics.get(&name).map(AsRef::as_ref) == node.as_ref() {
            return false;
        }
        // The offer of a managed node is stored too, because it counts as soon as the GpuNode is gone. Until then the
        // supply is the same.
        let is_static = !self.managed.contains(&name);
        match node {
            Some(node) => drop(self.statics.insert(name, Arc::new(node))),
            None => drop(self.statics.remove(&name)),
        }
        is_static
    }

    /// Sets whether a Node can run pods in user namespaces, and returns whether the supply changed. A Node that was
    /// never set is assumed to have them.
    pub fn show_user_namespaces(&mut self, name: &NodeName, has_them: bool) -> bool {
        if self.without_users.contains(name) != has_them {
            return false;
        }
        let without = Arc::make_mut(&mut self.without_users);
        if has_them { without.remove(name) } else { without.insert(name.clone()) }
    }

    /// Removes the Nodes that no longer exist, with what they offer.
    pub fn retain_static(&mut self, is_there: impl Fn(&NodeName) -> bool) {
        if !self.without_users.iter().all(&is_there) {
            Arc::make_mut(&mut self.without_users).retain(|name| is_there(name));
        }
        self.statics.retain(|name, _| is_there(name));
    }

    /// Removes a GpuNode, and returns whether the supply changed.
    pub fn remove(&mut self, name: &NodeName) -> bool {
        let is_static = self.managed.remove(name) && self.statics.contains_key(name);
        self.nodes.remove(name).is_some() || is_static
    }

    /// Removes the `GpuNodes` that no longer exist, and returns whether there were any.
    pub fn retain(&mut self, is_there: impl Fn(&NodeName) -> bool) -> bool {
        let gone = self.managed.iter().filter(|name| !is_there(name));
        let gone: Vec<NodeName> = gone.cloned().collect();
        for name in &gone {
            self.remove(name);
        }
        !gone.is_empty()
    }

    /// The number of `GpuNodes` with a readable status in the index.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// A snapshot of the supply of all nodes.
    #[must_use]
    pub fn supply(&self) -> Supply {
        let all = self.nodes.values().flat_map(|gpus| gpus.iter());
        // GPUs of one sort share one `Arc`, so its address identifies the sort.
        let sorts: BTreeMap<_, _> = all.map(|(_, gpu)| (Arc::as_ptr(gpu).addr(), gpu.clone())).collect();
        let nodes = self.nodes.iter().map(|(name, gpus)| (name.clone(), gpus.clone()));
        let gpus = Gpus { sorts: sorts.into_values().collect(), nodes: nodes.collect() };
        let is_static = |(name, _): &(&NodeName, &_)| !self.managed.contains(*name);
        let statics = self.statics.iter().filter(is_static);
        let statics: StaticNodes = statics.map(|(name, node)| (name.clone(), node.clone())).collect();
        Supply {
            gpus: Arc::new(gpus),
            statics: Arc::new(statics),
            without_users: self.without_users.clone(),
            concrete_names: !self.knows_neutral && self.nodes.values().any(|gpus| !gpus.is_empty()),
            ..Supply::default()
        }
    }

    fn supply_of(&mut self, chip: Chip) -> Arc<GpuSupply> {
        if let Some((_, known)) = self.sorts.iter().find(|(known, _)| *known == chip) {
            return known.clone();
        }
        if self.sorts.len() >= SORTS_LIMIT {
            self.sorts.retain(|(_, supply)| Arc::strong_count(supply) > 1);
        }
        let supply = Arc::new(chip.supply(&mut self.fleet));
        self.sorts.push((chip, supply.clone()));
        supply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node_status;
    use crate::units::MemoryMib;

    #[test]
    fn sorts_that_no_node_has_are_dropped_at_the_limit() {
        let mut index = SupplyIndex::default();
        for (_, memory) in (0..=SORTS_LIMIT).zip(15_000..) {
            let mut status = node_status(&["T4-16GB"]);
            status.gpus[0].memory = MemoryMib(memory);
            index.show("n".into(), &GpuNodeSpec::default(), &status);
        }
        assert_eq!(index.sorts.len(), 2, "the present one, and the one that it replaces");
    }
}
