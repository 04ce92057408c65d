//! Rollback: kerf restores the former values of labels that failed, or that no policy sets any longer. It keeps pods
//! off the node until NVIDIA's programs have followed.

use super::expected_allocatable::shown;
use super::node::{Around, NodeDecision, NodeWrite, SeenNode};
use super::propagation::{self, Propagation};
use super::record::{NodeRecord, PluginLabels, Progress};
use super::state::{Failure, LayoutState};

/// Rolls back a change that failed, once no pod holds a GPU.
pub(super) fn failed(node: &SeenNode, record: NodeRecord, why: Failure, around: &Around<'_>) -> NodeDecision {
    let waits = |pods| LayoutState::RollbackWaits { layout: record.layout.clone(), why: why.clone(), pods };
    if let Some(waiting) = node.waits(waits) {
        return waiting;
    }
    let state = rolled_back(&record, why.clone());
    let set = record.previous.clone();
    let propagation = Some(Propagation::begin(node, &set, around.now));
    let record =
        NodeRecord { progress: Progress::RolledBack { why }, set: set.clone(), propagation, ..record };
    NodeDecision::with_write(NodeWrite { labels: set, record: Some(record) }, Some(state))
}

pub(super) fn rolled_back(record: &NodeRecord, why: Failure) -> LayoutState {
    let default = || "the plugin's default configuration".to_owned();
    let back = record.previous.config.as_ref().map_or_else(default, |key| format!("configuration {key}"));
    LayoutState::RolledBack { layout: record.layout.clone(), why, back }
}

/// Restores the labels of a node that must have no layout any longer.
pub(super) fn removed(node: &SeenNode, record: NodeRecord, around: &Around<'_>) -> NodeDecision {
    if record.set == record.before {
        return left(node, &record, around);
    }
    let waits = |pods| LayoutState::RemovalWaits { layout: record.layout.clone(), pods };
    if let Some(waiting) = node.waits(waits) {
        return waiting;
    }
    let state = removing(node, &record);
    let labels = record.before.clone();
    let propagation = Some(Propagation::begin(node, &labels, around.now));
    let (digest, progress, set) = (String::new(), Progress::Applied, labels.clone());
    let record = NodeRecord { digest, progress, set, propagation, ..record };
    NodeDecision::with_write(NodeWrite { labels, record: Some(record) }, Some(state))
}

/// A node with its labels from before kerf: the record is removed once the plugin has followed.
pub(super) fn left(node: &SeenNode, record: &NodeRecord, around: &Around<'_>) -> NodeDecision {
    let state = removing(node, record);
    if record.propagation.is_some() && !has_followed(node, record, around) {
        return NodeDecision::from_state(state);
    }
    NodeDecision::with_write(
        NodeWrite { labels: PluginLabels::from_labels(&node.labels), record: None },
        None,
    )
}

fn removing(node: &SeenNode, record: &NodeRecord) -> LayoutState {
    LayoutState::Removing { layout: record.layout.clone(), shown: shown(&node.allocatable) }
}

/// The state, before all others, of a node that stays closed because the MIG manager does not finish. The timeout does
/// not open the node, because the manager may continue its cut at any moment, also under pods.
pub(super) fn stuck(node: &SeenNode, record: &NodeRecord, around: &Around<'_>) -> Option<LayoutState> {
    let seconds = around.timeout_seconds;
    record.propagation.as_ref()?;
    let state = propagation::stuck(node, around.age(record), seconds)?.to_owned();
    Some(LayoutState::MigManagerStuck { layout: record.layout.clone(), seconds, state })
}

pub(super) fn has_followed(node: &SeenNode, record: &NodeRecord, around: &Around<'_>) -> bool {
    let (age, timeout) = (around.age(record), around.timeout_seconds);
    record.propagation.as_ref().is_some_and(|propagation| {
        if record.is_applying() {
            propagation.is_over(node, age, timeout)
        } else {
            propagation.has_left(&record.expected, node, age, timeout)
        }
    })
}

/// Records that the MIG manager was seen at work. Once NVIDIA's programs have followed a rollback, it opens the node to
/// pods, whatever layout is desired now.
pub(super) fn followed(node: &SeenNode, record: NodeRecord, around: &Around<'_>) -> Option<NodeWrite> {
    let propagation = record.propagation.as_ref()?;
    let is_left = !record.is_applying() && has_followed(node, &record, around);
    let next = if is_left { None } else { Some(propagation.noticing(node)?) };
    let record = NodeRecord { propagation: next, ..record };
    Some(NodeWrite { labels: PluginLabels::from_labels(&node.labels), record: Some(record) })
}
