//! Updates of static nodes.

use super::super::node_updates::NodeUpdates;
use super::StaticNodes;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::static_node::StaticNode;
use std::time::{Duration, Instant};

impl NodeUpdates<'_> {
    pub fn static_nodes(&mut self) -> &mut StaticNodes {
        &mut self.nodes.static_nodes
    }

    /// Ends a list of all Nodes: those that it did not contain are gone.
    pub fn end_node_list(&mut self) {
        self.effects.progress = true;
        if let Some(shown) = self.objects.end_list() {
            let names = self.nodes.static_nodes.names().filter(|name| !shown.contains(*name));
            for name in names.cloned().collect::<Vec<_>>() {
                self.show_static(&name, None);
            }
        }
    }

    /// Updates what a Node offers by NVIDIA's device plugin; `None` if the Node is gone, or offers nothing of the kind.
    pub fn show_static(&mut self, name: &NodeName, node: Option<StaticNode>) {
        self.objects.add_to_list(name);
        if self.nodes.static_nodes.show(name, node) {
            // A node that appears while devices may be stale makes a new list necessary.
            self.effects.progress |= self.nodes.static_nodes.are_unread();
            self.devices_changed(name);
        }
    }

    /// Opens the static nodes that are closed for a change, except for those that are being changed.
    pub fn open_static_nodes(&mut self, is_changing: impl Fn(&NodeName) -> bool) {
        let opened = self.nodes.static_nodes.open(is_changing);
        self.nodes_changed(opened);
    }

    /// Opens the other static nodes once those that are being changed are closed.
    pub fn know_changes(&mut self) {
        self.nodes.static_nodes.know_changes();
        self.all_devices_changed();
    }

    /// Records that Nodes and pods were listed in this term, so that static nodes are known.
    pub fn set_static_nodes_read(&mut self) {
        self.nodes.static_nodes.set_unread(false);
        self.all_devices_changed();
        self.effects.progress = true;
    }

    /// Opens static nodes once no Binding of the predecessor can be made any longer.
    pub(in crate::cluster_index) fn reopen_static_nodes(&mut self, now: Instant, request_limit: Duration) {
        if self.nodes.static_nodes.reopen(now, request_limit) {
            tracing::info!(
                "no Binding of the former leader can be under way: pods come to static nodes again"
            );
            self.all_devices_changed();
        }
    }

    /// Releases the devices that are reserved for a pod. Returns the pod and its node, if there were any.
    pub(in crate::cluster_index) fn release_devices(&mut self, uid: &PodUid) -> Option<(PodKey, NodeName)> {
        let pod = self.nodes.static_nodes.reservation(uid)?.key.clone();
        let node = self.nodes.static_nodes.release(uid)?;
        self.devices_changed(&node);
        Some((pod, node))
    }

    pub(in crate::cluster_index) fn all_devices_changed(&mut self) {
        let all: Vec<NodeName> = self.nodes.static_nodes.names().cloned().collect();
        self.nodes_changed(all);
    }

    pub(in crate::cluster_index) fn nodes_changed(&mut self, names: impl IntoIterator<Item = NodeName>) {
        names.into_iter().for_each(|name| self.devices_changed(&name));
    }

    /// Updates what depends on the devices of a node, unless the node is managed.
    pub(in crate::cluster_index) fn devices_changed(&mut self, name: &NodeName) {
        if !self.nodes.managed.contains(name.as_str()) {
            self.quotas.charge_devices(name, self.nodes, self.pods);
            self.changed(name);
        }
    }
}
