//! Chooses a node's layout: the one that its label names, otherwise that of the first policy that matches the node.

use super::layout::PluginLayout;
use super::state::{Conflict, LayoutState};
use crate::keys;
use crate::managed::is_managed;
use crate::names::NodeName;
use crate::selector::NodeMatch;
use std::collections::BTreeMap;

/// A layout of a policy in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutPolicy<'p> {
    /// The policy's `metadata.name`, which is the name of the layout too.
    pub name: &'p str,
    /// The layout for NVIDIA's device plugin.
    pub layout: &'p PluginLayout,
    /// The nodes that the policy selects. Managed nodes among them get no layout.
    pub nodes: &'p NodeMatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen<'p> {
    pub(super) name: &'p str,
    pub(super) layout: &'p PluginLayout,
    /// Whether the node's label names it.
    pub(super) by_label: bool,
}

/// The layout of a node; `None` on a managed node, and where no policy matches.
pub(super) fn choose<'p>(
    policies: &[LayoutPolicy<'p>],
    name: &NodeName,
    labels: &BTreeMap<String, String>,
) -> Result<Option<Chosen<'p>>, LayoutState> {
    if is_managed(labels) {
        return Ok(None);
    }
    let label = labels.get(keys::LAYOUT).filter(|label| !label.is_empty());
    if let Some(chosen) = label.and_then(|label| named(policies, label)) {
        return Ok(Some(Chosen { by_label: true, ..chosen }));
    }
    let matching = policies.iter().find(|policy| policy.nodes.is_for(name, labels));
    let by_label = |policy: &LayoutPolicy<'_>| policy.nodes.labels.contains_key(keys::LAYOUT);
    let chosen = matching.map(|policy| Chosen { by_label: by_label(policy), ..policy.chosen() });
    match (chosen, label) {
        (None, Some(label)) => {
            let known = policies.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
            Err(LayoutState::Conflict(Conflict::UnknownLayout { label: label.clone(), known }))
        }
        (chosen, _) => Ok(chosen),
    }
}

pub(super) fn named<'p>(policies: &[LayoutPolicy<'p>], name: &str) -> Option<Chosen<'p>> {
    policies.iter().find(|policy| policy.name == name).map(LayoutPolicy::chosen)
}

impl<'p> LayoutPolicy<'p> {
    fn chosen(&self) -> Chosen<'p> {
        Chosen { name: self.name, layout: self.layout, by_label: false }
    }
}
