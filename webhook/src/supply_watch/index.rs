//! The cluster's GPUs, as the watches have shown them.

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

#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) nodes: SupplyIndex,
    /// The name that each `DeviceClass` maps to DRA, if it maps one.
    classes: BTreeMap<String, String>,
    /// The `GpuNodes` of a list that is not complete yet. They are collected so that nodes which are gone can be
    /// removed at its end.
    listed: BTreeSet<NodeName>,
    /// The Nodes of such a list.
    listed_nodes: BTreeSet<NodeName>,
    /// The `DeviceClasses` of such a list.
    listed_classes: BTreeMap<String, String>,
    /// Whether the `GpuNodes` were listed once, and whether the Nodes and the `DeviceClasses` were listed or cannot be.
    known: (bool, bool, bool),
    /// The `GpuNodes` that cannot be parsed, with the reason, so that each reason is logged once.
    pub(super) unreadable: BTreeMap<NodeName, String>,
}

impl Index {
    pub fn supply(&self) -> Option<Supply> {
        let names = || -> MappedNames {
            // In reverse order, so that the first of several classes for a name is kept.
            self.classes.iter().rev().map(|(class, name)| (name.clone(), class.clone())).collect()
        };
        (self.known == (true, true, true)).then(|| self.nodes.supply().mapped(Arc::new(names())))
    }

    pub fn nodes(&self) -> usize {
        self.nodes.nodes()
    }

    /// Takes an event, and returns whether the supply may have changed. The entries of a list count once it is
    /// complete, because the nodes that it has not shown yet would be missing.
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

    /// Records that the `DeviceClasses` cannot be watched, mostly because the cluster has none. Pods must not wait for
    /// them then. Returns whether that changes the supply.
    pub fn classes_unknown(&mut self) -> bool {
        !std::mem::replace(&mut self.known.2, true)
    }

    /// Records that the Nodes cannot be watched, so that pods of managed nodes need not wait for them. Returns whether
    /// that changes the supply.
    pub fn nodes_unknown(&mut self) -> bool {
        !std::mem::replace(&mut self.known.1, true)
    }

    /// Of the spec only the node's policy counts. An unreadable spec has none.
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
                self.remove_supply(&name)
            }
            Err(error) => {
                let reason = error.to_string();
                if self.unreadable.get(&name) != Some(&reason) {
                    tracing::warn!(node = %name, reason, "GpuNode counts as no supply");
                    self.unreadable.insert(name.clone(), reason);
                }
                self.remove_supply(&name)
            }
        }
    }

    /// Records a node whose GpuNode serves nothing. It still counts as managed.
    fn remove_supply(&mut self, name: &NodeName) -> bool {
        let removed = self.nodes.remove(name);
        self.nodes.claim(name.clone()) || removed
    }
}
