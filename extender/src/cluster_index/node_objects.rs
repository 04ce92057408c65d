//! What the Node objects say: their labels, taints, CPU and memory, and whether they take new pods. Also what the pods
//! without kerf's label use of them.

use super::list::List;
use super::node_labels::NodeLabels;
use super::unlabelled_pods::UnlabelledPods;
use crate::objects::compute::Compute;
use crate::objects::pod::KnownPod;
use crate::shared::Shared;
use hashbrown::{HashMap, HashSet};
use k8s_openapi::api::core::v1::Taint;
use kerf_core::managed::is_managed;
use kerf_core::names::{NodeName, PodUid};
use std::collections::BTreeMap;

/// CPU and memory of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Machine {
    /// What the node has for pods.
    pub size: Compute,
    /// What pods use: those without kerf's label, and those that have reservations.
    pub taken: Compute,
}

impl Machine {
    pub fn left(self) -> Compute {
        self.size.minus(self.taken)
    }
}

/// The Nodes that the watch has shown, with or without GPUs.
#[derive(Debug, Default)]
pub struct NodeObjects {
    allocatable: HashMap<NodeName, Compute>,
    /// The taints of each Node that has some.
    taints: HashMap<NodeName, Vec<Taint>>,
    labels: HashMap<NodeName, NodeLabels>,
    /// The labels of all Nodes.
    known_labels: Shared<(String, String)>,
    /// Nodes that take no new pods, because they are cordoned or lost.
    closed: HashSet<NodeName>,
    without_user_namespaces: HashSet<NodeName>,
    list: List<NodeName>,
    unlabelled: UnlabelledPods,
    unlabelled_list: List<PodUid>,
}

impl NodeObjects {
    /// Makes answers wait for the Nodes and for the pods without kerf's label, which are about to be listed.
    pub fn await_lists(&mut self) {
        self.list.await_end();
        self.unlabelled_list.await_end();
    }

    pub(super) fn are_awaited(&self) -> bool {
        self.list.is_awaited() || self.unlabelled_list.is_awaited()
    }

    pub fn begin_list(&mut self) {
        self.list.begin();
    }

    pub(super) fn add_to_list(&mut self, name: &NodeName) {
        self.list.add(name);
    }

    /// Ends the list, and returns the Nodes that it contained. For other Nodes it drops what only a listed Node has.
    pub(super) fn end_list(&mut self) -> Option<HashSet<NodeName>> {
        let shown = self.list.end()?;
        self.closed.retain(|name| shown.contains(name));
        self.without_user_namespaces.retain(|name| shown.contains(name));
        Some(shown)
    }

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

    /// Sets whether the Node takes no new pods. The scheduler applies that rule itself, and pods may tolerate it, so
    /// the node is not refused here. But its free slices do not count as room for pending pods.
    pub fn set_closed(&mut self, name: NodeName, is_closed: bool) {
        if is_closed {
            self.closed.insert(name);
        } else {
            self.closed.remove(&name);
        }
    }

    pub(super) fn set_user_namespaces(&mut self, name: &NodeName, has_them: bool) {
        if has_them {
            self.without_user_namespaces.remove(name);
        } else {
            self.without_user_namespaces.insert(name.clone());
        }
    }

    /// The Node's labels; `None` if it is unknown.
    pub(super) fn labels(&self, name: &NodeName) -> Option<&NodeLabels> {
        self.labels.get(name)
    }

    /// The Node's taints; `None` if it has none.
    pub(super) fn taints(&self, name: &NodeName) -> Option<&[Taint]> {
        self.taints.get(name).map(Vec::as_slice)
    }

    /// Whether the Node takes new pods. An unknown one does.
    pub(super) fn is_open(&self, name: &NodeName) -> bool {
        !self.closed.contains(name)
    }

    /// `Some(false)` if the Node reports none; `None` otherwise, because an unknown Node is not refused.
    pub(super) fn has_user_namespaces(&self, name: &NodeName) -> Option<bool> {
        self.without_user_namespaces.contains(name).then_some(false)
    }

    /// The Nodes that kerf manages by their labels and that take new pods.
    pub(super) fn managed(&self) -> impl Iterator<Item = &NodeName> {
        let managed = self.labels.iter().filter(|(_, labels)| is_managed(*labels)).map(|(name, _)| name);
        managed.filter(|name| self.is_open(name))
    }

    /// The CPU and memory of a node with GPUs, on which pods with reservations use this. If its Node is not known, it
    /// counts as having plenty.
    pub(super) fn machine(&self, name: &NodeName, reserved: Compute) -> Machine {
        let size = self.allocatable.get(name).copied().unwrap_or(Compute::PLENTY);
        Machine { size, taken: self.unlabelled.used_on(name).plus(reserved) }
    }

    pub(super) fn show_unlabelled(&mut self, pod: &KnownPod) {
        self.unlabelled_list.add(&pod.uid);
        self.unlabelled.show(pod);
    }

    pub(super) fn hide_unlabelled(&mut self, uid: &PodUid) {
        self.unlabelled.hide(uid);
    }

    pub fn begin_unlabelled_list(&mut self) {
        self.unlabelled_list.begin();
    }

    /// Ends that list, and returns the pods that it contained. The others are removed.
    pub(super) fn end_unlabelled_list(&mut self) -> Option<HashSet<PodUid>> {
        let shown = self.unlabelled_list.end()?;
        self.unlabelled.retain(|uid| shown.contains(uid));
        Some(shown)
    }
}
