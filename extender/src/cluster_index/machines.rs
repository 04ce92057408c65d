//! What the Node objects say: their labels, taints, CPU and memory, and whether they take new pods. Also what the pods without kerf's label
//! use of them.

use super::IndexedNode;
use super::fractions::Machine;
use super::node_labels::NodeLabels;
use super::others::Others;
use crate::compute::Compute;
use crate::pod::KnownPod;
use crate::shared::Shared;
use hashbrown::{HashMap, HashSet};
use k8s_openapi::api::core::v1::Taint;
use kerf_core::managed::is_managed;
use kerf_core::names::{NodeName, PodUid};
use std::collections::BTreeMap;

/// The Nodes that the watch has shown, with or without GPUs.
#[derive(Debug, Default)]
pub(super) struct Machines {
    allocatable: HashMap<NodeName, Compute>,
    /// The taints of each Node that has some.
    taints: HashMap<NodeName, Vec<Taint>>,
    labels: HashMap<NodeName, NodeLabels>,
    /// The labels of all Nodes.
    known_labels: Shared<(String, String)>,
    /// Nodes that take no new pods, because they are cordoned or lost.
    shut: HashSet<NodeName>,
    without_user_namespaces: HashSet<NodeName>,
    others: Others,
}

impl Machines {
    /// Sets what the Node has for pods; `None` if it is gone.
    pub fn set_allocatable(&mut self, name: NodeName, allocatable: Option<Compute>) {
        match allocatable {
            Some(allocatable) => drop(self.allocatable.insert(name, allocatable)),
            None => drop(self.allocatable.remove(&name)),
        }
    }

    /// Sets the Node's taints; none if it is gone.
    pub fn set_taints(&mut self, name: NodeName, taints: Vec<Taint>) {
        if taints.is_empty() {
            self.taints.remove(&name);
        } else {
            self.taints.insert(name, taints);
        }
    }

    /// Sets the Node's labels; `None` if it is gone.
    pub fn set_labels(&mut self, name: NodeName, labels: Option<BTreeMap<String, String>>) {
        match labels {
            Some(labels) => {
                let labels = NodeLabels::new(labels, &mut self.known_labels);
                self.labels.insert(name, labels);
            }
            None => drop(self.labels.remove(&name)),
        }
    }

    /// Sets whether the Node takes no new pods.
    pub fn set_shut(&mut self, name: NodeName, is_shut: bool) {
        if is_shut {
            self.shut.insert(name);
        } else {
            self.shut.remove(&name);
        }
    }

    /// Sets whether pods may run in user namespaces on the Node.
    pub fn set_user_namespaces(&mut self, name: &NodeName, has_them: bool) {
        if has_them {
            self.without_user_namespaces.remove(name);
        } else {
            self.without_user_namespaces.insert(name.clone());
        }
    }

    /// Forgets what only a listed Node can say of itself, for those that are not in a new list.
    pub fn retain(&mut self, is_shown: impl Fn(&NodeName) -> bool) {
        self.shut.retain(|name| is_shown(name));
        self.without_user_namespaces.retain(|name| is_shown(name));
    }

    /// The Node's labels; `None` if it is unknown.
    pub fn labels(&self, name: &NodeName) -> Option<&NodeLabels> {
        self.labels.get(name)
    }

    /// The Node's taints; `None` if it has none.
    pub fn taints(&self, name: &NodeName) -> Option<&[Taint]> {
        self.taints.get(name).map(Vec::as_slice)
    }

    /// Whether the Node takes new pods. An unknown one does.
    pub fn is_open(&self, name: &NodeName) -> bool {
        !self.shut.contains(name)
    }

    /// `Some(false)` if the Node reports none; `None` otherwise, because an unknown Node is not refused.
    pub fn has_user_namespaces(&self, name: &NodeName) -> Option<bool> {
        self.without_user_namespaces.contains(name).then_some(false)
    }

    /// The Nodes that kerf manages by their labels and that take new pods.
    pub fn managed(&self) -> impl Iterator<Item = &NodeName> {
        let managed = self.labels.iter().filter(|(_, labels)| is_managed(*labels)).map(|(name, _)| name);
        managed.filter(|name| self.is_open(name))
    }

    /// The CPU and memory of a node with GPUs. If its Node is not known, it counts as having plenty.
    pub fn machine(&self, name: &NodeName, node: &IndexedNode) -> Machine {
        let size = self.allocatable.get(name).copied().unwrap_or(Compute::PLENTY);
        Machine { size, taken: self.others.on(name).plus(node.compute) }
    }

    /// Updates a pod without kerf's label.
    pub fn show_other(&mut self, pod: &KnownPod) {
        self.others.show(pod);
    }

    /// Removes a pod without kerf's label.
    pub fn hide_other(&mut self, uid: &PodUid) {
        self.others.hide(uid);
    }

    /// Removes the pods without kerf's label that are not in a new list.
    pub fn retain_others(&mut self, is_shown: impl Fn(&PodUid) -> bool) {
        self.others.retain(is_shown);
    }
}
