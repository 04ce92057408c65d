//! The devices of NVIDIA's device plugin that pods hold, or have reserved for an open bind.
//!
//! No reservation is written anywhere, because the Binding is the commit. Free devices are the node's allocatable minus
//! the requests of bound pods, which any scheduler may have bound, and minus the reservations of pods that the watch
//! does not show as bound yet. All reservations are made here, one after the other.

use crate::objects::ask::Ask;
use hashbrown::{HashMap, HashSet};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::static_node::{Devices, sum};
use std::sync::Arc;

/// The watch that shows a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodWatch {
    /// The watch of pods with kerf's label.
    Labelled,
    /// The watch of pods without it.
    Unlabelled,
}

/// What a pod has of its node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Holds {
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
    is_labelled: bool,
    is_unlabelled: bool,
}

impl Holder {
    fn mark(&mut self, by: PodWatch) -> &mut bool {
        match by {
            PodWatch::Labelled => &mut self.is_labelled,
            PodWatch::Unlabelled => &mut self.is_unlabelled,
        }
    }
}

/// The reservation of a pod that is being bound.
#[derive(Debug, Clone)]
pub(crate) struct StaticReservation {
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
    reserved: HashSet<PodUid>,
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

/// The devices that pods hold or have reserved.
#[derive(Debug, Default)]
pub(super) struct HeldDevices {
    holders: HashMap<PodUid, Holder>,
    reservations: HashMap<PodUid, StaticReservation>,
    /// By node, static or not, because a node that is managed now may be static later.
    here: HashMap<NodeName, Here>,
}

impl HeldDevices {
    /// Records that a pod is bound to `node` and holds this, which may be nothing. Returns the nodes at which something
    /// changed.
    pub fn hold(&mut self, uid: &PodUid, node: &NodeName, holds: Holds, by: PodWatch) -> Vec<NodeName> {
        let mut changed: Vec<NodeName> = self.release(uid).into_iter().collect();
        if holds == Holds::default() {
            changed.extend(self.leave(uid, by));
            return changed;
        }
        let marks = self.holders.get(uid).map(|holder| (holder.is_labelled, holder.is_unlabelled));
        if self.holders.get(uid).is_none_or(|holder| holder.holds != holds || holder.node != *node) {
            changed.extend(self.drop_holder(uid));
            let here = self.here.entry(node.clone()).or_default();
            here.holders.insert(uid.clone());
            here.add(&holds.devices);
            here.sliced += usize::from(holds.slices);
            let (is_labelled, is_unlabelled) = marks.unwrap_or_default();
            let holder = Holder { node: node.clone(), holds, is_labelled, is_unlabelled };
            self.holders.insert(uid.clone(), holder);
            changed.push(node.clone());
        }
        if let Some(holder) = self.holders.get_mut(uid) {
            *holder.mark(by) = true;
        }
        changed
    }

    /// Records that a watch no longer shows a pod, or shows that it has ended.
    pub fn leave(&mut self, uid: &PodUid, by: PodWatch) -> Option<NodeName> {
        let holder = self.holders.get_mut(uid)?;
        *holder.mark(by) = false;
        if holder.is_labelled || holder.is_unlabelled { None } else { self.drop_holder(uid) }
    }

    /// Records that a pod lost kerf's label and lives on. The other watch will show it, but may not have done so yet.
    pub fn hand_over(&mut self, uid: &PodUid) {
        if let Some(holder) = self.holders.get_mut(uid) {
            (holder.is_labelled, holder.is_unlabelled) = (false, true);
        }
    }

    pub fn gone(&mut self, uid: &PodUid) -> Vec<NodeName> {
        self.release(uid).into_iter().chain(self.drop_holder(uid)).collect()
    }

    /// Ends a watch's list: pods that it did not contain are gone.
    pub fn retain(&mut self, by: PodWatch, is_shown: impl Fn(&PodUid) -> bool) -> Vec<NodeName> {
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
        if here.holders.is_empty() && here.reserved.is_empty() {
            self.here.remove(node);
        }
    }

    /// Reserves devices for a pod that is about to be bound.
    pub fn reserve(&mut self, uid: &PodUid, reserved: StaticReservation) {
        self.release(uid);
        let here = self.here.entry(reserved.node.clone()).or_default();
        here.reserved.insert(uid.clone());
        here.add(&reserved.devices);
        self.reservations.insert(uid.clone(), reserved);
    }

    pub fn reservation(&self, uid: &PodUid) -> Option<&StaticReservation> {
        self.reservations.get(uid)
    }

    pub fn reservations(&self) -> impl Iterator<Item = (&PodUid, &StaticReservation)> {
        self.reservations.iter()
    }

    /// Releases a reservation, and returns its node.
    pub fn release(&mut self, uid: &PodUid) -> Option<NodeName> {
        let reserved = self.reservations.remove(uid)?;
        self.take_away(&reserved.node, &reserved.devices, |here| here.reserved.remove(uid));
        Some(reserved.node)
    }

    /// Releases the reservations on a node that is no longer static.
    pub fn release_on(&mut self, node: &NodeName) {
        let reserved = self.here.get(node).map(|here| here.reserved.clone()).unwrap_or_default();
        reserved.iter().for_each(|uid| drop(self.release(uid)));
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

    /// Whether no pod is on a node and none is on its way.
    pub fn are_none_on(&self, node: &NodeName) -> bool {
        !self.here.contains_key(node)
    }

    /// Forgets the reservations, which only a leader has. Returns the nodes at which something changed.
    pub fn end_term(&mut self) -> Vec<NodeName> {
        let reserved: Vec<PodUid> = self.reservations.keys().cloned().collect();
        reserved.iter().filter_map(|uid| self.release(uid)).collect()
    }

    /// A node's devices that stay held or reserved once these pods are gone.
    pub fn taken_without(&self, node: &str, is_gone: impl Fn(&PodUid) -> bool) -> Devices {
        let held = self.holders_on(node);
        let reserved = self.here.get(node).into_iter().flat_map(|here| &here.reserved);
        let reserved = reserved.filter_map(|uid| Some((uid, &self.reservations.get(uid)?.devices)));
        sum(held.chain(reserved).filter(|(uid, _)| !is_gone(uid)).map(|(_, devices)| devices))
    }

    /// A node's devices that are held or reserved by pods other than `except`.
    pub fn taken(&self, node: &str, except: Option<&PodUid>) -> Devices {
        let mut taken = self.here.get(node).map(|here| here.taken.clone()).unwrap_or_default();
        let held =
            except.and_then(|uid| self.holders.get(uid)).map(|holder| (&holder.node, &*holder.holds.devices));
        let reserved = except.and_then(|uid| self.reservations.get(uid)).map(|own| (&own.node, &own.devices));
        for (_, own) in held.into_iter().chain(reserved).filter(|(at, _)| at.as_str() == node) {
            for (name, count) in own {
                if let Some(taken) = taken.get_mut(name) {
                    *taken = taken.saturating_sub(*count);
                }
            }
        }
        taken
    }
}
