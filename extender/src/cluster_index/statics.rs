//! Static nodes in the index: what NVIDIA's device plugin offers there, which pods hold it, and the binds under way.
//!
//! Nothing is written about it: the Binding is the commit. So what is free is allocatable less what bound pods ask for,
//! whoever bound them, less what was promised and is not seen bound yet. All promises are made here, one after the other.

use crate::ask::Ask;
use hashbrown::{HashMap, HashSet};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::static_node::{Devices, StaticNode};

/// Who shows a pod: the watch of sliced pods, that of all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shower {
    /// The watch of pods with kerf's label.
    Sliced,
    /// The watch of those without.
    Others,
}

/// A pod that holds devices, or will once its kubelet starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    node: NodeName,
    devices: Devices,
    sliced: bool,
    other: bool,
}

impl Holder {
    fn mark(&mut self, by: Shower) -> &mut bool {
        match by {
            Shower::Sliced => &mut self.sliced,
            Shower::Others => &mut self.other,
        }
    }
}

/// A pod that is being bound.
#[derive(Debug, Clone)]
pub(super) struct Promised {
    /// Where to.
    pub node: NodeName,
    /// Its namespace and name.
    pub key: PodKey,
    /// What it takes.
    pub devices: Devices,
    /// What it asks for; `None` for a pod that asks NVIDIA's device plugin and not kerf.
    pub ask: Option<Ask>,
}

/// The static nodes.
#[derive(Debug, Default)]
pub(super) struct Statics {
    nodes: HashMap<NodeName, StaticNode>,
    holders: HashMap<PodUid, Holder>,
    by_node: HashMap<NodeName, HashSet<PodUid>>,
    promises: HashMap<PodUid, Promised>,
}

impl Statics {
    /// What a Node offers, by its own account.
    pub fn node(&self, name: &str) -> Option<&StaticNode> {
        self.nodes.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// Whether it offers something else now.
    pub fn show(&mut self, name: &NodeName, node: Option<StaticNode>) -> bool {
        if self.nodes.get(name) == node.as_ref() {
            return false;
        }
        match node {
            Some(node) => drop(self.nodes.insert(name.clone(), node)),
            None => drop(self.nodes.remove(name)),
        }
        true
    }

    /// A pod is bound to `node` and holds these devices, or none of any. The nodes at which something changed.
    pub fn hold(&mut self, uid: &PodUid, node: &NodeName, devices: &Devices, by: Shower) -> Vec<NodeName> {
        let mut changed: Vec<NodeName> = self.promises.remove(uid).map(|promised| promised.node).into_iter().collect();
        if devices.is_empty() {
            changed.extend(self.leave(uid, by));
            return changed;
        }
        let new = || Holder { node: node.clone(), devices: devices.clone(), sliced: false, other: false };
        let holder = self.holders.entry(uid.clone()).or_insert_with(new);
        let is_new = !holder.sliced && !holder.other;
        *holder.mark(by) = true;
        if is_new || holder.devices != *devices {
            holder.devices.clone_from(devices);
            changed.push(node.clone());
        }
        self.by_node.entry(node.clone()).or_default().insert(uid.clone());
        changed
    }

    /// A watch shows a pod no more, or that it has ended.
    pub fn leave(&mut self, uid: &PodUid, by: Shower) -> Option<NodeName> {
        let holder = self.holders.get_mut(uid)?;
        *holder.mark(by) = false;
        if holder.sliced || holder.other { None } else { self.drop_holder(uid) }
    }

    /// A pod lost kerf's label and lives on: the other watch will show it, and has not yet, perhaps.
    pub fn hand_over(&mut self, uid: &PodUid) {
        if let Some(holder) = self.holders.get_mut(uid) {
            (holder.sliced, holder.other) = (false, true);
        }
    }

    /// A pod is gone.
    pub fn gone(&mut self, uid: &PodUid) -> Vec<NodeName> {
        self.release(uid).into_iter().chain(self.drop_holder(uid)).collect()
    }

    /// A watch has shown all of its pods: those that it did not show are gone.
    pub fn retain(&mut self, by: Shower, is_shown: impl Fn(&PodUid) -> bool) -> Vec<NodeName> {
        let gone = self.holders.keys().filter(|uid| !is_shown(uid)).cloned().collect::<Vec<_>>();
        gone.iter().filter_map(|uid| self.leave(uid, by)).collect()
    }

    fn drop_holder(&mut self, uid: &PodUid) -> Option<NodeName> {
        let node = self.holders.remove(uid)?.node;
        if let Some(here) = self.by_node.get_mut(&node) {
            here.remove(uid);
            if here.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some(node)
    }

    /// Promises devices to a pod that is about to be bound.
    pub fn promise(&mut self, uid: &PodUid, promised: Promised) {
        self.promises.insert(uid.clone(), promised);
    }

    pub fn promised(&self, uid: &PodUid) -> Option<&Promised> {
        self.promises.get(uid)
    }

    pub fn promises(&self) -> impl Iterator<Item = (&PodUid, &Promised)> {
        self.promises.iter()
    }

    /// Takes a promise back, and says where it was.
    pub fn release(&mut self, uid: &PodUid) -> Option<NodeName> {
        self.promises.remove(uid).map(|promised| promised.node)
    }

    /// Takes back what is promised on a node that is no static one any more.
    pub fn release_on(&mut self, node: &NodeName) {
        self.promises.retain(|_, promised| promised.node != *node);
    }

    /// The pods that hold something of a node.
    pub fn holders_on(&self, node: &str) -> impl Iterator<Item = (&PodUid, &Devices)> {
        let here = self.by_node.get(node).into_iter().flatten();
        here.filter_map(|uid| Some((uid, &self.holders.get(uid)?.devices)))
    }

    /// What of a node's devices is held or promised, but for what this pod has.
    pub fn taken(&self, node: &str, except: Option<&PodUid>) -> Devices {
        let held = self.holders_on(node);
        let promised = self.promises.iter().filter(|(_, promised)| promised.node.as_str() == node);
        let promised = promised.map(|(uid, promised)| (uid, &promised.devices));
        let others = held.chain(promised).filter(|(uid, _)| except != Some(*uid));
        sum(others.map(|(_, devices)| devices))
    }
}

/// All of them together.
pub(super) fn sum<'d>(all: impl Iterator<Item = &'d Devices>) -> Devices {
    let mut sum = Devices::new();
    for (name, count) in all.flatten() {
        let total = sum.entry(*name).or_default();
        *total = count.saturating_add(*total);
    }
    sum
}
