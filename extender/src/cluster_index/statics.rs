//! Static nodes in the index: what NVIDIA's device plugin offers there, which pods hold it, and open binds.
//!
//! No reservation is written anywhere, because the Binding is the commit. What is free is allocatable, less what bound
//! pods ask for, whichever scheduler bound them, less reservations whose pods are not seen bound yet. All reservations
//! are made here, one after the other.

use crate::ask::Ask;
use hashbrown::{HashMap, HashSet};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::static_node::{Devices, StaticNode, sum};
use std::sync::Arc;

/// The watch that shows a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shower {
    /// The watch of pods with kerf's label.
    Sliced,
    /// The watch of pods without it.
    Others,
}

/// What a pod has of its node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Holds {
    /// Devices of NVIDIA's device plugin, or what goes by their names.
    pub devices: Arc<Devices>,
    /// Whether it has slices that one of kerf's agents made.
    pub slices: bool,
}

/// A pod that holds devices, or will once its kubelet starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    node: NodeName,
    holds: Holds,
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

/// The reservation of a pod that is being bound.
#[derive(Debug, Clone)]
pub(super) struct Promised {
    pub node: NodeName,
    pub key: PodKey,
    pub devices: Devices,
    /// The pod's request; `None` for a pod that asks NVIDIA's device plugin and not kerf.
    pub ask: Option<Ask>,
}

/// Everything that is held or reserved on one node.
#[derive(Debug, Default)]
struct Here {
    holders: HashSet<PodUid>,
    promised: HashSet<PodUid>,
    /// The sum of all devices that are held or reserved.
    taken: Devices,
    /// How many holders have slices that one of kerf's agents made.
    sliced: usize,
}

impl Here {
    fn add(&mut self, devices: &Devices) {
        for (name, count) in devices {
            let taken = self.taken.entry(*name).or_default();
            *taken = taken.saturating_add(*count);
        }
    }

    fn remove(&mut self, devices: &Devices) {
        for (name, count) in devices {
            if let Some(taken) = self.taken.get_mut(name) {
                *taken = taken.saturating_sub(*count);
            }
        }
        self.taken.retain(|_, count| *count > 0);
    }
}

#[derive(Debug, Default)]
pub(super) struct Statics {
    nodes: HashMap<NodeName, StaticNode>,
    holders: HashMap<PodUid, Holder>,
    promises: HashMap<PodUid, Promised>,
    /// By node, static or not, because a node that is managed now may be static later.
    here: HashMap<NodeName, Here>,
    /// Nodes that are closed to pods, because they are about to be changed.
    closed: HashSet<NodeName>,
    /// True until it is known which nodes a former leader has begun to change: all nodes are closed.
    are_unknown: bool,
    /// True while a former leader may have Bindings under way: all nodes are closed.
    are_waiting: bool,
    /// True while what pods hold may be older than this term: all nodes are closed.
    are_unread: bool,
}

impl Statics {
    /// What a Node offers, by its labels and allocatable.
    pub fn node(&self, name: &str) -> Option<&StaticNode> {
        self.nodes.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// Updates a node. Returns whether it offers something else now.
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

    /// Records that a pod is bound to `node` and holds this, which may be nothing. Returns the nodes at which something
    /// changed.
    pub fn hold(&mut self, uid: &PodUid, node: &NodeName, holds: Holds, by: Shower) -> Vec<NodeName> {
        let mut changed: Vec<NodeName> = self.release(uid).into_iter().collect();
        if holds == Holds::default() {
            changed.extend(self.leave(uid, by));
            return changed;
        }
        let marks = self.holders.get(uid).map(|holder| (holder.sliced, holder.other));
        if self.holders.get(uid).is_none_or(|holder| holder.holds != holds || holder.node != *node) {
            changed.extend(self.drop_holder(uid));
            let here = self.here.entry(node.clone()).or_default();
            here.holders.insert(uid.clone());
            here.add(&holds.devices);
            here.sliced += usize::from(holds.slices);
            let (sliced, other) = marks.unwrap_or_default();
            let holder = Holder { node: node.clone(), holds, sliced, other };
            self.holders.insert(uid.clone(), holder);
            changed.push(node.clone());
        }
        if let Some(holder) = self.holders.get_mut(uid) {
            *holder.mark(by) = true;
        }
        changed
    }

    /// Records that a watch no longer shows a pod, or shows that it has ended.
    pub fn leave(&mut self, uid: &PodUid, by: Shower) -> Option<NodeName> {
        let holder = self.holders.get_mut(uid)?;
        *holder.mark(by) = false;
        if holder.sliced || holder.other { None } else { self.drop_holder(uid) }
    }

    /// Records that a pod lost kerf's label and lives on. The other watch will show it, but may not have done so yet.
    pub fn hand_over(&mut self, uid: &PodUid) {
        if let Some(holder) = self.holders.get_mut(uid) {
            (holder.sliced, holder.other) = (false, true);
        }
    }

    pub fn gone(&mut self, uid: &PodUid) -> Vec<NodeName> {
        self.release(uid).into_iter().chain(self.drop_holder(uid)).collect()
    }

    /// Ends a watch's list: pods that it did not contain are gone.
    pub fn retain(&mut self, by: Shower, is_shown: impl Fn(&PodUid) -> bool) -> Vec<NodeName> {
        let gone = self.holders.keys().filter(|uid| !is_shown(uid)).cloned().collect::<Vec<_>>();
        gone.iter().filter_map(|uid| self.leave(uid, by)).collect()
    }

    fn drop_holder(&mut self, uid: &PodUid) -> Option<NodeName> {
        let holder = self.holders.remove(uid)?;
        let slices = usize::from(holder.holds.slices);
        self.take_away(&holder.node, &holder.holds.devices, |here| {
            here.sliced = here.sliced.saturating_sub(slices);
            here.holders.remove(uid)
        });
        Some(holder.node)
    }

    fn take_away(&mut self, node: &NodeName, devices: &Devices, remove: impl FnOnce(&mut Here) -> bool) {
        let Some(here) = self.here.get_mut(node) else { return };
        if remove(here) {
            here.remove(devices);
        }
        if here.holders.is_empty() && here.promised.is_empty() {
            self.here.remove(node);
        }
    }

    /// Reserves devices for a pod that is about to be bound.
    pub fn promise(&mut self, uid: &PodUid, promised: Promised) {
        self.release(uid);
        let here = self.here.entry(promised.node.clone()).or_default();
        here.promised.insert(uid.clone());
        here.add(&promised.devices);
        self.promises.insert(uid.clone(), promised);
    }

    pub fn promised(&self, uid: &PodUid) -> Option<&Promised> {
        self.promises.get(uid)
    }

    pub fn promises(&self) -> impl Iterator<Item = (&PodUid, &Promised)> {
        self.promises.iter()
    }

    /// Releases a reservation, and returns its node.
    pub fn release(&mut self, uid: &PodUid) -> Option<NodeName> {
        let promised = self.promises.remove(uid)?;
        self.take_away(&promised.node, &promised.devices, |here| here.promised.remove(uid));
        Some(promised.node)
    }

    /// Releases the reservations on a node that is no longer static.
    pub fn release_on(&mut self, node: &NodeName) {
        let promised = self.here.get(node).map(|here| here.promised.clone()).unwrap_or_default();
        promised.iter().for_each(|uid| drop(self.release(uid)));
    }

    /// The pods that hold something of a node.
    pub fn holders_on(&self, node: &str) -> impl Iterator<Item = (&PodUid, &Devices)> {
        let here = self.here.get(node).into_iter().flat_map(|here| &here.holders);
        here.filter_map(|uid| Some((uid, &*self.holders.get(uid)?.holds.devices)))
    }

    /// Whether some pod on it has slices that one of kerf's agents made.
    pub fn has_slices(&self, node: &str) -> bool {
        self.here.get(node).is_some_and(|here| here.sliced > 0)
    }

    /// Closes a node, if no pod is on it and none is on its way. Returns whether it is closed.
    pub fn close(&mut self, node: &NodeName) -> bool {
        let is_free = !self.are_waiting() && !self.here.contains_key(node);
        if is_free {
            self.closed.insert(node.clone());
        }
        is_free
    }

    /// Closes a node that is already being changed, even if pods are on it.
    pub fn shut(&mut self, node: &NodeName) {
        self.closed.insert(node.clone());
    }

    /// Sets whether it is unknown which nodes are closed.
    pub fn set_unknown(&mut self, are_unknown: bool) {
        self.are_unknown = are_unknown;
    }

    /// Sets whether a former leader's Bindings may be under way.
    pub fn set_waiting(&mut self, are_waiting: bool) {
        self.are_waiting = are_waiting;
    }

    /// Sets whether what pods hold may be older than this term.
    pub fn set_unread(&mut self, are_unread: bool) {
        self.are_unread = are_unread;
    }

    pub fn are_unread(&self) -> bool {
        self.are_unread
    }

    /// Whether all nodes are closed because of a former leader.
    pub fn are_waiting(&self) -> bool {
        self.are_waiting || self.are_unread
    }

    /// Forgets what only a leader knows: reservations, and which nodes are closed. Returns the nodes at which something
    /// changed.
    pub fn forget_leader(&mut self) -> Vec<NodeName> {
        self.closed.clear();
        (self.are_unknown, self.are_waiting, self.are_unread) = (false, false, false);
        let promised: Vec<PodUid> = self.promises.keys().cloned().collect();
        promised.iter().filter_map(|uid| self.release(uid)).collect()
    }

    /// Opens the closed nodes, except for these. Returns the opened ones.
    pub fn open(&mut self, stays_closed: impl Fn(&NodeName) -> bool) -> Vec<NodeName> {
        self.closed.extract_if(|node| !stays_closed(node)).collect()
    }

    /// Whether a node is closed to pods.
    pub fn is_closed(&self, node: &str) -> bool {
        self.are_unknown || self.closed.contains(node)
    }

    /// A node's devices that stay held or reserved once these pods are gone.
    pub fn taken_without(&self, node: &str, is_gone: impl Fn(&PodUid) -> bool) -> Devices {
        let held = self.holders_on(node);
        let promised = self.here.get(node).into_iter().flat_map(|here| &here.promised);
        let promised = promised.filter_map(|uid| Some((uid, &self.promises.get(uid)?.devices)));
        sum(held.chain(promised).filter(|(uid, _)| !is_gone(uid)).map(|(_, devices)| devices))
    }

    /// A node's devices that are held or reserved by pods other than `except`.
    pub fn taken(&self, node: &str, except: Option<&PodUid>) -> Devices {
        let mut taken = self.here.get(node).map(|here| here.taken.clone()).unwrap_or_default();
        let held =
            except.and_then(|uid| self.holders.get(uid)).map(|holder| (&holder.node, &*holder.holds.devices));
        let promised = except.and_then(|uid| self.promises.get(uid)).map(|own| (&own.node, &own.devices));
        for (_, own) in held.into_iter().chain(promised).filter(|(at, _)| at.as_str() == node) {
            for (name, count) in own {
                if let Some(taken) = taken.get_mut(name) {
                    *taken = taken.saturating_sub(*count);
                }
            }
        }
        taken
    }
}
