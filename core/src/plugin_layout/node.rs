//! The next step for one node. kerf changes nothing on a node while a pod holds a slice of kerf's there, or a device of
//! NVIDIA's plugin, whatever scheduler bound it. Otherwise the plugin would offer the pod's devices again.

use super::choice::{Chosen, LayoutPolicy, named};
use super::config_map::{key, layout_of};
use super::expected_allocatable::{ExpectedAllocatable, shown};
use super::first_seen::FirstSeen;
use super::gpus::{NodeGpus, is_another};
use super::propagation::Propagation;
use super::record::{NodeRecord, PluginLabels, Progress};
use super::rollback::{failed, followed, has_followed, left, removed, rolled_back, stuck};
use super::state::{Condition, Conflict, Failure, LayoutState, Pods, Preparation};
use super::{PluginLayout, Sharing};
use crate::contract::ConditionStatus;
use crate::managed::is_managed;
use crate::names::{NodeName, PodKey};
use crate::nvidia_keys::{MIG_STATE, SHARED, attribute, label};
use std::collections::BTreeMap;

/// A Node as it was observed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenNode {
    /// The labels of the Node.
    pub labels: BTreeMap<String, String>,
    /// The Node's allocatable, in whole devices.
    pub allocatable: BTreeMap<String, u64>,
    /// The kernel's boot ID, which distinguishes one boot from the next.
    pub boot: String,
    /// The JSON text of annotation [`PLUGIN_LAYOUT`](crate::keys::PLUGIN_LAYOUT), if there is one.
    pub record: Option<String>,
    /// The condition of type [`LAYOUT_CONDITION`](crate::keys::LAYOUT_CONDITION), if there is one.
    pub condition: Option<Condition>,
    /// The pods that hold its devices.
    pub holders: Holders,
}

impl SeenNode {
    /// The decision while pods hold GPUs of the node or the holders are unknown; `None` if certainly no pod holds one.
    pub(super) fn waits(&self, state: impl FnOnce(Pods) -> LayoutState) -> Option<NodeDecision> {
        match &self.holders {
            Holders::Unknown => Some(NodeDecision::asking(state(Pods(Vec::new())))),
            Holders::Known(pods) if !pods.is_empty() => {
                Some(NodeDecision::from_state(state(Pods(pods.clone()))))
            }
            Holders::Known(_) => None,
        }
    }
}

/// Pods that hold GPUs of a node: bound to it, not ended, and either asking for a resource of NVIDIA's plugin, or with
/// slices from the time when an agent managed the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Holders {
    /// They have not been looked up yet.
    #[default]
    Unknown,
    /// All pods that hold GPUs; empty if none does.
    Known(Vec<PodKey>),
}

/// What one patch writes on a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeWrite {
    /// The labels that the Node must have.
    pub labels: PluginLabels,
    /// The record for the annotation; `None` removes it.
    pub record: Option<NodeRecord>,
}

impl NodeWrite {
    /// Whether the patch changes what NVIDIA's programs read. Then no pod may come before they have followed.
    #[must_use]
    pub fn changes(&self, seen: &SeenNode) -> bool {
        self.labels != PluginLabels::from_labels(&seen.labels)
    }
}

/// An Event for a Node, published once for each reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutEvent {
    /// One word in `UpperCamelCase`, the condition's reason after `Layout`.
    pub reason: String,
    /// The message of the condition.
    pub message: String,
    /// Whether an admin has to act.
    pub is_warning: bool,
}

/// The decision for one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeDecision {
    /// The patch of labels and record; `None` if they stay.
    pub write: Option<NodeWrite>,
    /// The state of the node's layout; `None` on a node that has nothing to do with layouts.
    pub state: Option<LayoutState>,
    /// Whether the decision depends on the device holders, which are not known.
    pub asks_for_holders: bool,
}

/// Everything outside the node that its decision depends on.
#[derive(Debug)]
pub(super) struct Around<'a> {
    pub(super) policies: &'a [LayoutPolicy<'a>],
    /// The content of the `ConfigMap` now.
    pub(super) there: &'a BTreeMap<String, String>,
    /// The keys that every kubelet has brought to the plugin.
    pub(super) keys: &'a BTreeMap<String, String>,
    /// False while a policy file is bad, because then the missing policy may be in that file.
    pub(super) may_remove: bool,
    /// Whether the cluster allows a change on this node to begin.
    pub(super) gate: Gate,
    pub(super) timeout_seconds: u64,
    /// Written into records for people who read them. No decision depends on it.
    pub(super) now: u64,
    pub(super) ages: &'a FirstSeen,
    pub(super) name: &'a NodeName,
}

impl Around<'_> {
    pub(super) fn age(&self, record: &NodeRecord) -> u64 {
        self.ages.age_of_labels(self.name, record)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    Conflict(Conflict),
    Preparing(Preparation),
    /// Pods that hold MIG devices, on other nodes too.
    Pods(Pods),
}

impl NodeDecision {
    pub(super) fn from_state(state: LayoutState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    fn conflict(conflict: Conflict) -> Self {
        Self::from_state(LayoutState::Conflict(conflict))
    }

    pub(super) fn with_write(write: NodeWrite, state: Option<LayoutState>) -> Self {
        Self { write: Some(write), state, asks_for_holders: false }
    }

    fn asking(state: LayoutState) -> Self {
        Self { asks_for_holders: true, ..Self::from_state(state) }
    }

    /// The condition to write, if the Node has another one; `Some(None)` removes it.
    #[must_use]
    pub fn condition(&self, seen: &SeenNode) -> Option<Option<Condition>> {
        let wanted = self.state.as_ref().map(LayoutState::condition);
        (wanted != seen.condition).then_some(wanted)
    }

    /// The Event to publish: only if status or reason has changed, so that each state is reported once.
    #[must_use]
    pub fn event_after(&self, seen: &SeenNode) -> Option<LayoutEvent> {
        let before = seen.condition.as_ref();
        let Some(state) = &self.state else {
            before?;
            let message = "the node has no layout of kerf's any more".to_owned();
            return Some(LayoutEvent { reason: "LayoutRemoved".to_owned(), message, is_warning: false });
        };
        let Condition { status, reason, message } = state.condition();
        let is_new = before.is_none_or(|before| (&before.status, &before.reason) != (&status, &reason));
        let is_warning = state.status() == ConditionStatus::False;
        is_new.then(|| LayoutEvent { reason: format!("Layout{reason}"), message, is_warning })
    }
}

/// Decides for `node` and the layout that was chosen for it.
pub(super) fn decide(
    node: &SeenNode,
    chosen: Result<Option<Chosen<'_>>, LayoutState>,
    around: &Around<'_>,
) -> NodeDecision {
    let record = match node.record.as_deref().map(NodeRecord::from_json).transpose() {
        Ok(record) => record,
        Err(error) => {
            let unreadable = LayoutState::Conflict(Conflict::Record { error: error.to_string() });
            return NodeDecision::from_state(chosen.err().unwrap_or(unreadable));
        }
    };
    let decision = match chosen {
        Ok(chosen) => due(node, record.clone(), chosen, around),
        Err(state) => NodeDecision::from_state(state),
    };
    match record {
        Some(record) if decision.write.is_none() => begun_before(node, record, decision, around),
        _ => decision,
    }
}

/// A change that has begun ends by the expected devices in its record, whatever layout is desired now. Until it ends,
/// the node gets no pod, and a misspelt label must not keep the node closed for ever.
fn begun_before(
    node: &SeenNode,
    record: NodeRecord,
    decision: NodeDecision,
    around: &Around<'_>,
) -> NodeDecision {
    let labels = PluginLabels::from_labels(&node.labels);
    if record.is_applying() && record.set != labels {
        // Another client has changed the labels, so the expected devices will never appear. Without the record the node
        // opens again.
        return NodeDecision { write: Some(NodeWrite { labels, record: None }), ..decision };
    }
    if !record.is_applying() {
        let state = stuck(node, &record, around).or(decision.state);
        return NodeDecision { write: followed(node, record, around), state, ..decision };
    }
    let layout = named(around.policies, &record.layout).map(|chosen| chosen.layout);
    let layout = layout.filter(|layout| layout.digest() == record.digest);
    let ended = applying(node, record.clone(), layout, around);
    NodeDecision {
        write: ended.write.or_else(|| followed(node, record, around)),
        asks_for_holders: decision.asks_for_holders || ended.asks_for_holders,
        ..decision
    }
}

/// The decision without the effect of time on a change that has begun.
fn due(
    node: &SeenNode,
    record: Option<NodeRecord>,
    chosen: Option<Chosen<'_>>,
    around: &Around<'_>,
) -> NodeDecision {
    let labels = PluginLabels::from_labels(&node.labels);
    match record {
        None => unrecorded(node, &labels, chosen, around),
        // This arm comes first because GPU Operator sets a missing label while the plugin follows: labels that differ
        // mean no admin here.
        Some(record) if record.is_removed() && chosen.is_none() => left(node, &record, around),
        // Another client has set the labels. kerf drops its record and does not touch them again.
        Some(record) if record.set != labels => {
            NodeDecision::with_write(NodeWrite { labels, record: None }, None)
        }
        Some(record) => match chosen {
            None if !around.may_remove && record.is_applying() => applying(node, record, None, around),
            None if !around.may_remove => {
                NodeDecision::from_state(shows(node, &record.layout, &record.expected, None))
            }
            None => removed(node, record, around),
            Some(chosen) if record.layout == chosen.name && record.digest == chosen.layout.digest() => {
                begun(node, record, chosen, around)
            }
            Some(chosen) => begin(node, &labels, chosen, Some(&record), around),
        },
    }
}

fn unrecorded(
    node: &SeenNode,
    labels: &PluginLabels,
    chosen: Option<Chosen<'_>>,
    around: &Around<'_>,
) -> NodeDecision {
    let by_hand = labels.config.as_deref().map(|key| (key, named(around.policies, layout_of(key))));
    match (chosen, by_hand) {
        (None, Some((key, Some(layout)))) if !is_managed(&node.labels) && around.there.contains_key(key) => {
            watched(node, layout)
        }
        (None, _) => NodeDecision::default(),
        (Some(chosen), Some((key, None))) => {
            // An admin has set the label, and kerf overwrites no setting of an admin's.
            let (label, layout) = (key.to_owned(), chosen.name.to_owned());
            NodeDecision::conflict(Conflict::LabelByHand { label, layout })
        }
        // A label that names a configuration is more specific to the node than a policy for many nodes.
        (Some(chosen), Some((_, Some(by_hand)))) if by_hand.name == chosen.name || !chosen.by_label => {
            watched(node, by_hand)
        }
        (Some(chosen), _) => begin(node, labels, chosen, None, around),
    }
}

/// A node whose label an admin has set to one of kerf's keys: kerf reports its state, and changes nothing.
fn watched(node: &SeenNode, layout: Chosen<'_>) -> NodeDecision {
    let Some(gpus) = gpus(node) else { return NodeDecision::default() };
    match layout.layout.expected(&gpus) {
        Err(why) => NodeDecision::conflict(Conflict::Unfit { layout: layout.name.to_owned(), why }),
        Ok(expected) => NodeDecision::from_state(shows(node, layout.name, &expected, Some(layout.layout))),
    }
}

fn gpus(node: &SeenNode) -> Option<NodeGpus> {
    NodeGpus::from_labels(&node.labels, &node.allocatable, &node.boot)
}

/// Whether the node advertises the expected devices. `layout` is `None` if no policy has it any longer.
fn shows(
    node: &SeenNode,
    name: &str,
    expected: &ExpectedAllocatable,
    layout: Option<&PluginLayout>,
) -> LayoutState {
    let layout_name = name.to_owned();
    if expected.is_met_by(&node.allocatable)
        && layout.is_none_or(|layout| is_shared_as_planned(node, expected, layout))
    {
        return LayoutState::InForce { layout: layout_name, expected: expected.to_string() };
    }
    LayoutState::Short {
        layout: layout_name,
        expected: expected.to_string(),
        shown: shown(&node.allocatable),
    }
}

/// Whether GPU feature discovery, if present, reports the layout's way of sharing. Name and count alone cannot
/// distinguish four time slices from four MPS shares.
fn is_shared_as_planned(node: &SeenNode, expected: &ExpectedAllocatable, layout: &PluginLayout) -> bool {
    let ExpectedAllocatable::Counts(counts) = expected else { return true };
    let strategy = match layout.sharing {
        Sharing::None => "none",
        Sharing::TimeSlicing { .. } => "time-slicing",
        Sharing::Mps { .. } => "mps",
    };
    counts.keys().all(|name| {
        let plain = name.strip_suffix(SHARED).unwrap_or(name);
        node.labels.get(&label(plain, attribute::SHARING_STRATEGY)).is_none_or(|found| found == strategy)
    })
}

/// Begins a change, unless something blocks it.
fn begin(
    node: &SeenNode,
    labels: &PluginLabels,
    chosen: Chosen<'_>,
    record: Option<&NodeRecord>,
    around: &Around<'_>,
) -> NodeDecision {
    let name = || chosen.name.to_owned();
    let Some(gpus) = gpus(node) else {
        return if chosen.by_label {
            NodeDecision::conflict(Conflict::NoGpus { layout: name() })
        } else {
            NodeDecision::default()
        };
    };
    let expected = match chosen.layout.expected(&gpus) {
        Ok(expected) => expected,
        Err(why) => return NodeDecision::conflict(Conflict::Unfit { layout: name(), why }),
    };
    let preparing = |what| NodeDecision::from_state(LayoutState::Preparing { layout: name(), what });
    match &around.gate {
        Gate::Open => {}
        Gate::Conflict(conflict) => return NodeDecision::conflict(conflict.clone()),
        Gate::Preparing(what) => return preparing(what.clone()),
        Gate::Pods(pods) => {
            return NodeDecision::from_state(LayoutState::WaitsForStrategy {
                layout: name(),
                pods: pods.clone(),
            });
        }
    }
    let held = record.and_then(|record| record.set.config.as_deref());
    let Some(config) = key(chosen.name, chosen.layout, around.keys, held) else {
        return preparing(Preparation::ConfigMap);
    };
    let waits = |pods| LayoutState::WaitsForPods { layout: name(), pods };
    if let Some(waiting) = node.waits(waits) {
        return waiting;
    }
    let before = record.map_or(labels, |record| &record.before).clone();
    let set =
        PluginLabels { config: Some(config), mig: chosen.layout.mig_config.clone().or(before.mig.clone()) };
    // A rollback skips labels that were never seen to work.
    let unproven = record.filter(|record| record.is_applying());
    let previous = unproven.map_or(labels, |record| &record.previous).clone();
    let mig_had_failed = mig_state(node) == Some("failed");
    // Devices that were there before the change are no proof that the plugin has followed it.
    let is_met =
        matches!(shows(node, chosen.name, &expected, Some(chosen.layout)), LayoutState::InForce { .. });
    let propagation = is_met.then(|| Propagation::begin(node, &set, around.now));
    let state = LayoutState::Applying {
        layout: name(),
        expected: expected.to_string(),
        shown: shown(&node.allocatable),
    };
    let record = NodeRecord {
        layout: name(),
        digest: chosen.layout.digest(),
        node: gpus.fingerprint,
        progress: Progress::Applying { since: around.now, mig_had_failed },
        expected,
        set: set.clone(),
        previous,
        before,
        propagation,
    };
    NodeDecision::with_write(NodeWrite { labels: set, record: Some(record) }, Some(state))
}

pub(super) fn mig_state(node: &SeenNode) -> Option<&str> {
    node.labels.get(MIG_STATE).map(String::as_str)
}

/// A change that has begun with this content of the layout.
fn begun(node: &SeenNode, record: NodeRecord, chosen: Chosen<'_>, around: &Around<'_>) -> NodeDecision {
    match &record.progress {
        Progress::Applied => {
            let seen = shows(node, &record.layout, &record.expected, Some(chosen.layout));
            match (&seen, &around.gate) {
                (LayoutState::Short { .. }, Gate::Conflict(conflict @ Conflict::Strategies { .. })) => {
                    NodeDecision::conflict(conflict.clone())
                }
                _ => NodeDecision::from_state(seen),
            }
        }
        Progress::RolledBack { why } => {
            // A node whose GPUs cannot be seen now counts as unchanged, so that no failed layout is retried for it.
            let is_other = gpus(node).is_some_and(|gpus| is_another(&record.node, &gpus.fingerprint));
            if is_other {
                return begin(node, &record.set.clone(), chosen, Some(&record), around);
            }
            NodeDecision::from_state(rolled_back(&record, why.clone()))
        }
        Progress::Applying { .. } => applying(node, record, Some(chosen.layout), around),
    }
}

/// A change whose outcome is open. `layout` is `None` if no policy has it any longer.
fn applying(
    node: &SeenNode,
    record: NodeRecord,
    layout: Option<&PluginLayout>,
    around: &Around<'_>,
) -> NodeDecision {
    let Progress::Applying { mig_had_failed, .. } = record.progress else {
        return NodeDecision::default();
    };
    let seen = shows(node, &record.layout, &record.expected, layout);
    let cuts = layout.map_or(record.set.mig.is_some(), |layout| layout.mig_config.is_some());
    let mig = mig_state(node).filter(|_| cuts);
    let is_cutting = matches!(mig, Some("pending" | "rebooting" | "failed"));
    let lags = record.propagation.is_some() && !has_followed(node, &record, around);
    if matches!(seen, LayoutState::InForce { .. }) && !is_cutting && !lags {
        let labels = record.set.clone();
        let record = NodeRecord { progress: Progress::Applied, propagation: None, ..record };
        return NodeDecision::with_write(NodeWrite { labels, record: Some(record) }, Some(seen));
    }
    if mig == Some("failed") && !mig_had_failed {
        let config = record.set.mig.clone().unwrap_or_default();
        return failed(node, record, Failure::MigManager { config }, around);
    }
    let (expected, shown) = (record.expected.to_string(), shown(&node.allocatable));
    if around.age(&record) >= around.timeout_seconds {
        let why = Failure::TimedOut { seconds: around.timeout_seconds, shown };
        return failed(node, record, why, around);
    }
    NodeDecision::from_state(LayoutState::Applying { layout: record.layout, expected, shown })
}
