//! What the watches have shown of the cluster's GPUs.

use kerf_core::contract::{GpuNodeSpec, Revisions};
use kerf_core::names::NodeName;
use kerf_core::policy::{Supply, SupplyIndex};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use std::collections::{BTreeMap, BTreeSet};

/// The nodes, managed and static.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) nodes: SupplyIndex,
    /// The revisions of the specs that can be read.
    pub(super) revisions: Revisions,
    /// The `GpuNodes` of a list that is not complete yet.
    listed: BTreeSet<NodeName>,
    /// The Nodes of such a list.
    listed_nodes: BTreeSet<NodeName>,
    /// Whether the `GpuNodes` were listed once, and whether the Nodes were, or cannot be.
    known: (bool, bool),
    /// Why `GpuNodes` cannot be read: each reason is logged once.
    pub(super) unreadable: BTreeMap<NodeName, String>,
}

impl Index {
    /// The supply, once both were listed.
    pub fn supply(&self) -> Option<Supply> {
        (self.known == (true, true)).then(|| self.nodes.supply())
    }

    /// How many managed nodes are known.
    pub fn nodes(&self) -> usize {
        self.nodes.nodes()
    }

    /// Takes an event, and says whether the supply may be another now. What a list shows is told when it is complete.
    pub fn take(&mut self, event: Event<GpuNode>) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(node) => {
                self.listed.insert(node.name());
                self.show(&node);
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.nodes.retain(|name| listed.contains(name));
                self.revisions.retain(|name, _| listed.contains(name));
                self.unreadable.retain(|name, _| listed.contains(name));
                self.known.0 = true;
                true
            }
            Event::Apply(node) => self.show(&node),
            Event::Delete(node) => {
                self.unreadable.remove(&node.name());
                self.revisions.remove(&node.name());
                self.nodes.remove(&node.name())
            }
        }
    }

    /// The same of a Node.
    pub fn take_node(&mut self, event: Event<Machine>) -> bool {
        match event {
            Event::Init => {
                self.listed_nodes.clear();
                false
            }
            Event::InitApply(node) => {
                self.listed_nodes.insert(node.name());
                self.show_node(&node);
                false
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed_nodes);
                self.nodes.retain_static(|name| listed.contains(name));
                self.nodes.retain_shut(|name| listed.contains(name));
                self.known.1 = true;
                true
            }
            Event::Apply(node) => self.show_node(&node),
            Event::Delete(node) => {
                let opened = self.nodes.show_shut(node.name(), false);
                let is_other = self.nodes.show_static(node.name(), None);
                self.nodes.show_user_namespaces(&node.name(), true);
                self.nodes.show_labels(&node.name(), None) || is_other || opened
            }
        }
    }

    fn show_node(&mut self, node: &Machine) -> bool {
        let is_shut = self.nodes.show_shut(node.name(), node.is_shut());
        let is_other = self.nodes.show_static(node.name(), node.static_node());
        let has_users = node.has_user_namespaces();
        let is_other = self.nodes.show_user_namespaces(&node.name(), has_users) || is_other;
        self.nodes.show_labels(&node.name(), Some(node.labels())) || is_other || is_shut
    }

    /// The Nodes cannot be watched: pods of managed nodes do not wait for that. Whether the supply is another by it.
    pub fn nodes_unknown(&mut self) -> bool {
        !std::mem::replace(&mut self.known.1, true)
    }

    fn show(&mut self, node: &GpuNode) -> bool {
        let name = node.name();
        let spec = node.read_spec();
        let revised = self.note_revision(&name, spec.as_ref().ok().map(|spec| spec.revision));
        self.show_supply(node, name, spec) || revised
    }

    /// Whether this is another revision than was known.
    fn note_revision(&mut self, name: &NodeName, revision: Option<u64>) -> bool {
        let before = match revision {
            None => self.revisions.remove(name),
            Some(revision) => self.revisions.insert(name.clone(), revision),
        };
        before != revision
    }

    fn show_supply<E>(&mut self, node: &GpuNode, name: NodeName, spec: Result<GpuNodeSpec, E>) -> bool {
        match node.read_status() {
            Ok(Some(status)) => {
                self.unreadable.remove(&name);
                let open = spec.is_ok() && status.is_ready();
                let spec = spec.unwrap_or_else(|_| GpuNodeSpec::default());
                self.nodes.show(name, &spec, &status, open)
            }
            Ok(None) => {
                self.unreadable.remove(&name);
                self.nothing_of(&name)
            }
            Err(error) => {
                let reason = error.to_string();
                if self.unreadable.get(&name) != Some(&reason) {
                    tracing::warn!(node = %name, reason, "GpuNode counts as no supply");
                    self.unreadable.insert(name.clone(), reason);
                }
                self.nothing_of(&name)
            }
        }
    }

    /// A node has a GpuNode that serves nothing. It is a managed one all the same.
    fn nothing_of(&mut self, name: &NodeName) -> bool {
        let removed = self.nodes.remove(name);
        self.nodes.claim(name.clone()) || removed
    }
}
