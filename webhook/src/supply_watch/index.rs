//! What the watches have shown of the cluster's GPUs.

use kerf_core::contract::GpuNodeSpec;
use kerf_core::names::NodeName;
use kerf_core::policy::{MappedNames, Supply, SupplyIndex};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::runtime::watcher::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The nodes, managed and static.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) nodes: SupplyIndex,
    /// The name that each `DeviceClass` maps to DRA, if it maps one.
    classes: BTreeMap<String, String>,
    /// The `GpuNodes` of a list that is not complete yet.
    listed: BTreeSet<NodeName>,
    /// The Nodes of such a list.
    listed_nodes: BTreeSet<NodeName>,
    /// The `DeviceClasses` of such a list.
    listed_classes: BTreeMap<String, String>,
    /// Whether the `GpuNodes` were listed once, and whether the Nodes and the `DeviceClasses` were, or cannot be.
    known: (bool, bool, bool),
    /// Why `GpuNodes` cannot be read: each reason is logged once.
    pub(super) unreadable: BTreeMap<NodeName, String>,
}

impl Index {
    /// The supply, once all were listed.
    pub fn supply(&self) -> Option<Supply> {
        let names = || -> MappedNames {
            self.classes.iter().rev().map(|(class, name)| (name.clone(), class.clone())).collect()
        };
        (self.known == (true, true, true)).then(|| self.nodes.supply().mapped(Arc::new(names())))
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
                self.unreadable.retain(|name, _| listed.contains(name));
                self.known.0 = true;
                true
            }
            Event::Apply(node) => self.show(&node),
            Event::Delete(node) => {
                self.unreadable.remove(&node.name());
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
                self.known.1 = true;
                true
            }
            Event::Apply(node) => self.show_node(&node),
            Event::Delete(node) => {
                let is_other = self.nodes.show_static(node.name(), None);
                self.nodes.show_user_namespaces(&node.name(), true) || is_other
            }
        }
    }

    fn show_node(&mut self, node: &Machine) -> bool {
        let is_other = self.nodes.show_static(node.name(), node.static_node());
        self.nodes.show_user_namespaces(&node.name(), node.has_user_namespaces()) || is_other
    }

    /// The same of a `DeviceClass`.
    pub fn take_class(&mut self, event: Event<DynamicObject>) -> bool {
        let mapped = |class: &DynamicObject| {
            let name = class.data["spec"]["extendedResourceName"].as_str()?;
            Some((class.name_any(), name.to_owned()))
        };
        match event {
            Event::Init => {
                self.listed_classes.clear();
                false
            }
            Event::InitApply(class) => {
                self.listed_classes.extend(mapped(&class));
                false
            }
            Event::InitDone => {
                self.classes = std::mem::take(&mut self.listed_classes);
                self.known.2 = true;
                true
            }
            Event::Apply(class) => {
                let before = self.classes.remove(&class.name_any());
                let now = mapped(&class);
                let is_other = before.as_ref() != now.as_ref().map(|(_, name)| name);
                self.classes.extend(now);
                is_other
            }
            Event::Delete(class) => self.classes.remove(&class.name_any()).is_some(),
        }
    }

    /// The `DeviceClasses` cannot be watched, most often because the cluster has none. Whether the supply is another by it.
    pub fn classes_unknown(&mut self) -> bool {
        !std::mem::replace(&mut self.known.2, true)
    }

    /// The Nodes cannot be watched: pods of managed nodes do not wait for that. Whether the supply is another by it.
    pub fn nodes_unknown(&mut self) -> bool {
        !std::mem::replace(&mut self.known.1, true)
    }

    /// Of the spec the node's policy counts; one that cannot be read has none.
    fn show(&mut self, node: &GpuNode) -> bool {
        let name = node.name();
        match node.read_status() {
            Ok(Some(status)) => {
                self.unreadable.remove(&name);
                let spec = node.read_spec().unwrap_or_else(|_| GpuNodeSpec::default());
                self.nodes.show(name, &spec, &status)
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
