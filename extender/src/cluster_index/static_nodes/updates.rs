//! Updates of static nodes, and of the pods that hold something of one.

use super::super::node_updates::NodeUpdates;
use super::{PodWatch, StaticNodes};
use crate::objects::pod::KnownPod;
use kerf_core::names::{NodeName, PodUid};
use kerf_core::static_node::StaticNode;
use std::time::{Duration, Instant};

impl NodeUpdates<'_> {
    pub fn static_nodes(&mut self) -> &mut StaticNodes {
        self.static_nodes
    }

    /// Ends a list of all Nodes: those that it did not contain are gone.
    pub fn end_node_list(&mut self) {
        self.effects.progress = true;
        if let Some(shown) = self.objects.end_list() {
            let names = self.static_nodes.names().filter(|name| !shown.contains(*name));
            for name in names.cloned().collect::<Vec<_>>() {
                self.show_static(&name, None);
            }
        }
    }

    /// Updates what a Node offers by NVIDIA's device plugin; `None` if the Node is gone, or offers nothing of the kind.
    pub fn show_static(&mut self, name: &NodeName, node: Option<StaticNode>) {
        self.objects.add_to_list(name);
        if self.static_nodes.show(name, node) {
            // A node that appears while devices may be stale makes a new list necessary.
            self.effects.progress |= self.static_nodes.are_unread();
            self.static_changed(name);
        }
    }

    /// Ends a list of all pods without kerf's label: pods that it did not contain are gone.
    pub fn end_unlabelled_list(&mut self) {
        self.effects.progress = true;
        if let Some(shown) = self.objects.end_unlabelled_list() {
            let changed = self.static_nodes.retain(PodWatch::Unlabelled, |uid| shown.contains(uid));
            self.static_nodes_changed(changed);
        }
    }

    pub fn show_unlabelled(&mut self, pod: &KnownPod) {
        self.objects.show_unlabelled(pod);
        self.hold(pod, PodWatch::Unlabelled);
    }

    /// Removes a pod without kerf's label: it is gone, has ended, or has the label now.
    pub fn hide_unlabelled(&mut self, uid: &PodUid) {
        self.objects.hide_unlabelled(uid);
        let changed = self.static_nodes.leave(uid, PodWatch::Unlabelled);
        self.static_nodes_changed(changed);
    }

    /// Counts what a pod holds of NVIDIA's device plugin.
    pub(in crate::cluster_index) fn hold(&mut self, pod: &KnownPod, by: PodWatch) {
        let changed = self.static_nodes.hold(pod, by);
        self.static_nodes_changed(changed);
    }

    /// Opens the static nodes that are closed for a change, except for those that are being changed.
    pub fn open_static_nodes(&mut self, is_changing: impl Fn(&NodeName) -> bool) {
        let opened = self.static_nodes.open(is_changing);
        self.static_nodes_changed(opened);
    }

    /// Opens the other static nodes once those that are being changed are closed.
    pub fn know_changes(&mut self) {
        self.static_nodes.know_changes();
        self.all_static_nodes_changed();
    }

    /// Records that Nodes and pods were listed in this term, so that static nodes are known.
    pub fn set_static_nodes_read(&mut self) {
        self.static_nodes.set_unread(false);
        self.all_static_nodes_changed();
        self.effects.progress = true;
    }

    /// Opens static nodes once no Binding of the predecessor can be made any longer.
    pub(in crate::cluster_index) fn reopen_static_nodes(&mut self, now: Instant, request_limit: Duration) {
        if self.static_nodes.reopen(now, request_limit) {
            tracing::info!(
                "no Binding of the former leader can be under way: pods come to static nodes again"
            );
            self.all_static_nodes_changed();
        }
    }

    /// Releases a pod's reservation on a static node. Returns whether there was one.
    pub(in crate::cluster_index) fn release_static(&mut self, uid: &PodUid) -> bool {
        let released = self.static_nodes.release(uid);
        let was_there = released.is_some();
        self.static_nodes_changed(released);
        was_there
    }

    fn all_static_nodes_changed(&mut self) {
        let all: Vec<NodeName> = self.static_nodes.names().cloned().collect();
        self.static_nodes_changed(all);
    }

    pub(in crate::cluster_index) fn static_nodes_changed(&mut self, names: impl IntoIterator<Item = NodeName>) {
        names.into_iter().for_each(|name| self.static_changed(&name));
    }

    pub(in crate::cluster_index) fn static_changed(&mut self, name: &NodeName) {
        if !self.managed.contains(name.as_str()) {
            self.quotas.charge_static(name, self.static_nodes, self.pods);
            self.changed(name);
        }
    }

    #[must_use]
    pub fn is_static(&self, name: &NodeName) -> bool {
        self.static_nodes.contains(name.as_str()) && !self.managed.contains(name.as_str())
    }

    /// The static nodes. A Node with a GpuNode is none.
    pub(in crate::cluster_index) fn static_names(&self) -> impl Iterator<Item = &NodeName> {
        self.static_nodes.names().filter(|name| !self.managed.contains(name.as_str()))
    }
}
