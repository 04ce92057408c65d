//! Which layout a node gets: the one that its label names, otherwise that of the first policy that matches the node.

use super::layout::PluginLayout;
use super::state::{Conflict, LayoutState};
use crate::keys;
use crate::managed::is_managed;
use crate::names::NodeName;
use crate::policy::Policies;
use std::collections::BTreeMap;

/// A layout with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen<'p> {
    pub(super) name: &'p str,
    pub(super) layout: &'p PluginLayout,
    /// Whether the node's label names it.
    pub(super) by_label: bool,
}

/// The layout of a node; `None` on a managed node, and where no policy matches.
pub(super) fn choose<'p>(
    policies: &'p Policies,
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
    let mut matching = policies.layouts().filter(|(rules, _)| rules.mismatch(name, labels).is_none());
    let chosen = matching.next().map(|(rules, layout)| Chosen {
        name: rules.name.as_str(),
        layout,
        by_label: rules.labels.contains_key(keys::LAYOUT),
    });
    match (chosen, label) {
        (None, Some(label)) => {
            let known =
                policies.layouts().map(|(rules, _)| rules.name.as_str()).collect::<Vec<_>>().join(", ");
            Err(LayoutState::Conflict(Conflict::UnknownLayout { label: label.clone(), known }))
        }
        (chosen, _) => Ok(chosen),
    }
}

pub(super) fn named<'p>(policies: &'p Policies, name: &str) -> Option<Chosen<'p>> {
    let (rules, layout) = policies.layouts().find(|(rules, _)| rules.name == name)?;
    Some(Chosen { name: rules.name.as_str(), layout, by_label: false })
}
