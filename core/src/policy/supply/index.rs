//! The supply of each node, kept up to date node by node. What GPUs serve that are alike and cut alike is worked out once.

use super::fixed::StaticNodes;
use super::gpu::{Chip, Cut, GpuSupply};
use super::labels::LabelIndex;
use super::{Alike, Gpus, Supply};
use crate::contract::{GpuNodeSpec, GpuNodeStatus};
use crate::inventory::NodeInventory;
use crate::managed::is_managed;
use crate::names::{GpuUuid, NodeName};
use crate::packing::Fleet;
use crate::static_node::StaticNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How many supplies are kept before those that no GPU has any more are dropped.
const KEPT: usize = 512;

/// The GPUs of one node.
type NodeGpus = Arc<[(GpuUuid, Arc<GpuSupply>)]>;

/// The same with its name.
pub(super) type NamedGpus = (Arc<NodeName>, NodeGpus);

/// The supply of each node.
#[derive(Debug, Default)]
pub struct SupplyIndex {
    nodes: BTreeMap<Arc<NodeName>, NodeGpus>,
    /// What Nodes offer that NVIDIA's device plugin serves.
    statics: StaticNodes,
    /// Nodes that have a GpuNode, readable or not: they are not static, whatever their Node says.
    managed: BTreeSet<NodeName>,
    labels: LabelIndex,
    /// Nodes that cannot run pods in user namespaces.
    without_users: Arc<BTreeSet<NodeName>>,
    /// Nodes to which no new pods are sent, with what the managed ones would serve otherwise.
    shut: BTreeMap<NodeName, Option<NodeGpus>>,
    /// How many GPUs of all nodes are alike, by the address of what they share.
    alike: BTreeMap<usize, Alike>,
    chips: Vec<(Chip, BTreeMap<Cut, Arc<GpuSupply>>)>,
    fleet: Fleet,
}

impl SupplyIndex {
    /// Says what a node has now, and whether that is another supply. A node that is not `open` serves nothing more.
    pub fn show(&mut self, name: NodeName, spec: &GpuNodeSpec, status: &GpuNodeStatus, open: bool) -> bool {
        let was_static = self.claim(name.clone());
        let inventory = NodeInventory::of(spec, status);
        let known = status.gpus.iter().zip(&inventory.gpus);
        let supplies = known.map(|(status, gpu)| self.supply_of(Chip::of(status, gpu), Cut::of(gpu, open)));
        let supplies: Vec<_> = supplies.collect();
        let gpus: NodeGpus = status.gpus.iter().map(|gpu| gpu.uuid.clone()).zip(supplies).collect();
        let closed = self.shut.contains_key(&name).then(|| self.closed(&gpus));
        if let Some(open) = self.shut.get_mut(&name) {
            *open = Some(gpus.clone());
        }
        self.put(name, closed.unwrap_or(gpus)) || was_static
    }

    /// Says whether a node takes no new pods, whoever serves it: it is cordoned, or lost. What it could ever serve stays, and what it
    /// has room for counts for nothing. Whether that is another supply.
    pub fn show_shut(&mut self, name: NodeName, is_shut: bool) -> bool {
        if self.shut.contains_key(&name) == is_shut {
            return false;
        }
        let is_static = self.statics.contains_key(&name) && !self.managed.contains(&name);
        let gpus = if is_shut {
            let open = self.nodes.get(&name).cloned();
            let closed = open.as_ref().map(|open| self.closed(open));
            self.shut.insert(name.clone(), open);
            closed
        } else {
            self.shut.remove(&name).flatten()
        };
        gpus.is_some_and(|gpus| self.put(name, gpus)) || is_static
    }

    /// Takes the nodes that are shut and not among these for open. Whether that is another supply.
    pub fn retain_shut(&mut self, is_shut: impl Fn(&NodeName) -> bool) -> bool {
        let opened: Vec<NodeName> = self.shut.keys().filter(|name| !is_shut(name)).cloned().collect();
        let mut changed = false;
        for name in opened {
            changed |= self.show_shut(name, false);
        }
        changed
    }

    /// The same GPUs while nothing new is cut from them.
    fn closed(&mut self, gpus: &NodeGpus) -> NodeGpus {
        gpus.iter().map(|(uuid, gpu)| (uuid.clone(), self.closed_gpu(gpu))).collect()
    }

    fn closed_gpu(&mut self, gpu: &Arc<GpuSupply>) -> Arc<GpuSupply> {
        let cut = |cuts: &BTreeMap<Cut, Arc<GpuSupply>>| {
            cuts.iter().find(|(_, known)| Arc::ptr_eq(known, gpu)).map(|(cut, _)| cut.closed())
        };
        let found = self.chips.iter().enumerate().find_map(|(at, (_, cuts))| Some((at, cut(cuts)?)));
        // What some node has is known.
        found.map_or_else(|| gpu.clone(), |(at, cut)| self.cut_supply(at, cut))
    }

    /// Whether a node has other GPUs now.
    fn put(&mut self, name: NodeName, gpus: NodeGpus) -> bool {
        let same = |before: &NodeGpus| {
            let pairs = || before.iter().zip(gpus.iter());
            before.len() == gpus.len() && pairs().all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1))
        };
        if self.nodes.get(&name).is_some_and(same) {
            return false;
        }
        for (_, gpu) in gpus.iter() {
            self.alike.entry(Arc::as_ptr(gpu).addr()).or_insert_with(|| (gpu.clone(), 0)).1 += 1;
        }
        if let Some(before) = self.nodes.insert(Arc::new(name), gpus) {
            self.uncount(&before);
        }
        true
    }

    /// Says that a node has a GpuNode, and whether it was static until now.
    pub fn claim(&mut self, name: NodeName) -> bool {
        let is_static = self.statics.contains_key(&name);
        self.managed.insert(name) && is_static
    }

    /// Says what a Node offers that NVIDIA's device plugin serves, if it does, and whether that is another supply.
    pub fn show_static(&mut self, name: NodeName, node: Option<StaticNode>) -> bool {
        if self.statics.get(&name).map(AsRef::as_ref) == node.as_ref() {
            return false;
        }
        let is_static = !self.managed.contains(&name);
        match node {
            Some(node) => drop(self.statics.insert(name, Arc::new(node))),
            None => drop(self.statics.remove(&name)),
        }
        is_static
    }

    /// Says what labels a Node has, `None` for one that is gone, and whether that is another supply. Those of Nodes without GPUs
    /// are not kept. What else a Node says is to be shown before.
    pub fn show_labels(&mut self, name: &NodeName, labels: Option<&BTreeMap<String, String>>) -> bool {
        let is_known = self.managed.contains(name) || self.statics.contains_key(name);
        self.labels.show(name, labels.filter(|labels| is_known || is_managed(labels)))
    }

    /// Says whether a Node can run pods in user namespaces, and whether that is another supply. One of which nothing is said is
    /// taken for one that can.
    pub fn show_user_namespaces(&mut self, name: &NodeName, has_them: bool) -> bool {
        if self.without_users.contains(name) != has_them {
            return false;
        }
        let without = Arc::make_mut(&mut self.without_users);
        if has_them { without.remove(name) } else { without.insert(name.clone()) }
    }

    /// Forgets the Nodes that are not there any more, and what they offer.
    pub fn retain_static(&mut self, is_there: impl Fn(&NodeName) -> bool) {
        if !self.without_users.iter().all(&is_there) {
            Arc::make_mut(&mut self.without_users).retain(|name| is_there(name));
        }
        self.statics.retain(|name, _| is_there(name));
        self.labels.retain(is_there);
    }

    /// Forgets a GpuNode, and says whether the supply is another without it.
    pub fn remove(&mut self, name: &NodeName) -> bool {
        let is_static = self.managed.remove(name) && self.statics.contains_key(name);
        if let Some(open) = self.shut.get_mut(name) {
            *open = None;
        }
        let removed = self.nodes.remove(name);
        removed.inspect(|gpus| self.uncount(gpus)).is_some() || is_static
    }

    /// Forgets the nodes that are not there any more, and says whether there were any.
    pub fn retain(&mut self, is_there: impl Fn(&NodeName) -> bool) -> bool {
        let gone = self.managed.iter().filter(|name| !is_there(name));
        let gone: Vec<NodeName> = gone.cloned().collect();
        for name in &gone {
            self.remove(name);
        }
        !gone.is_empty()
    }

    /// How many nodes are known.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The supply of all nodes, while nothing is pending.
    #[must_use]
    pub fn supply(&self) -> Supply {
        let alike = self.alike.values().cloned().collect();
        let nodes = self.nodes.iter().map(|(name, gpus)| (name.clone(), gpus.clone()));
        let gpus = Gpus { alike, nodes: nodes.collect() };
        let is_static = |(name, _): &(&NodeName, &_)| !self.managed.contains(*name);
        let statics = self.statics.iter().filter(is_static);
        let statics: StaticNodes = statics.map(|(name, node)| (name.clone(), node.clone())).collect();
        let shut = self.shut.keys().filter(|name| statics.contains_key(*name)).cloned().collect();
        let labels = self.labels.nodes();
        Supply {
            gpus: Arc::new(gpus),
            statics: Arc::new(statics),
            shut: Arc::new(shut),
            labels,
            without_users: self.without_users.clone(),
            ..Supply::default()
        }
    }

    fn uncount(&mut self, gpus: &NodeGpus) {
        for (_, gpu) in gpus.iter() {
            if let Some((_, count)) = self.alike.get_mut(&Arc::as_ptr(gpu).addr()) {
                *count -= 1;
            }
        }
        self.alike.retain(|_, (_, count)| *count > 0);
    }

    fn supply_of(&mut self, chip: Chip, cut: Cut) -> Arc<GpuSupply> {
        let known = self.chips.iter().position(|(known, _)| known.is_like(&chip));
        let at = known.unwrap_or_else(|| {
            self.chips.push((chip.prepared(&mut self.fleet), BTreeMap::new()));
            self.chips.len() - 1
        });
        self.cut_supply(at, cut)
    }

    /// What a chip of this number serves that is cut so.
    fn cut_supply(&mut self, at: usize, cut: Cut) -> Arc<GpuSupply> {
        let (chip, cuts) = &mut self.chips[at];
        if let Some(known) = cuts.get(&cut) {
            return known.clone();
        }
        let supply = Arc::new(chip.supply(&cut, &self.fleet));
        cuts.insert(cut, supply.clone());
        if self.chips.iter().map(|(_, cuts)| cuts.len()).sum::<usize>() > KEPT {
            self.drop_unused();
        }
        supply
    }

    /// Drops what no node has; what is being worked out for one is in the caller's hands.
    fn drop_unused(&mut self) {
        for (_, cuts) in &mut self.chips {
            cuts.retain(|_, supply| Arc::strong_count(supply) > 1);
        }
        self.chips.retain(|(_, cuts)| !cuts.is_empty());
    }
}
