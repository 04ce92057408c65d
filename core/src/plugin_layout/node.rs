//! What is due on one node. Nothing is changed on a node while a pod holds a device of NVIDIA's plugin there, whoever scheduled
//! it, or a slice of kerf's: the plugin would hand out again what the pod has.

use super::choice::{Chosen, named};
use super::config_map::{key, layout_of};
use super::gpus::{NodeGpus, is_another};
use super::lag::Lag;
use super::promise::{Promise, shown};
use super::record::{NodeRecord, PluginLabels, Progress};
use super::state::{Condition, Conflict, Failure, LayoutState, Pods, Preparation, Standing};
use super::way_back::{failed, followed, has_followed, left, removed, rolled_back, stuck};
use super::{PluginLayout, Sharing};
use crate::managed::is_managed;
use crate::names::PodKey;
use crate::nvidia_keys::{MIG_STATE, SHARED, attribute, label};
use crate::policy::Policies;
use std::collections::BTreeMap;

/// A Node as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenNode {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What it has for pods, in whole devices.
    pub allocatable: BTreeMap<String, u64>,
    /// Tells its boots apart.
    pub boot: String,
    /// The text of its record ([`PLUGIN_LAYOUT`](crate::keys::PLUGIN_LAYOUT)).
    pub record: Option<String>,
    /// Its condition ([`LAYOUT_CONDITION`](crate::keys::LAYOUT_CONDITION)).
    pub condition: Option<Condition>,
    /// Who holds devices of it.
    pub holders: Holders,
}

impl SeenNode {
    /// What is due while pods hold GPUs of it, or nobody knows whether; `None` if none does, and it may be changed.
    pub(super) fn waits(&self, state: impl FnOnce(Pods) -> LayoutState) -> Option<NodeDecision> {
        match &self.holders {
            Holders::Unknown => Some(NodeDecision::asking(state(Pods(Vec::new())))),
            Holders::Known(pods) if !pods.is_empty() => Some(NodeDecision::of(state(Pods(pods.clone())))),
            Holders::Known(_) => None,
        }
    }
}

/// Pods that hold GPUs of a node: bound to it, not ended, and asking for one of the names of NVIDIA's plugin, or with slices from
/// when the node was kerf's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Holders {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// These.
    Known(Vec<PodKey>),
}

/// What is to be written on a Node, in one patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeWrite {
    /// Its labels.
    pub labels: PluginLabels,
    /// Its record; `None` removes it.
    pub record: Option<NodeRecord>,
}

impl NodeWrite {
    /// Whether NVIDIA's programs are told something else: then no pod may come before they have followed.
    #[must_use]
    pub fn changes(&self, seen: &SeenNode) -> bool {
        self.labels != PluginLabels::of(&seen.labels)
    }
}

/// What a Node's users are told, once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// One word.
    pub reason: String,
    /// The text.
    pub message: String,
    /// Whether somebody has to do something.
    pub is_warning: bool,
}

/// What is due on a node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeDecision {
    /// Labels and record, if they change.
    pub write: Option<NodeWrite>,
    /// How far it is; `None` on a node that no layout has to do with.
    pub state: Option<LayoutState>,
    /// It depends on who holds devices, which is not known.
    pub asks_for_holders: bool,
}

/// What is around a node.
#[derive(Debug)]
pub(super) struct Around<'a> {
    pub(super) policies: &'a Policies,
    /// What the `ConfigMap` holds now, and the plugin on every node.
    pub(super) keys: &'a BTreeMap<String, String>,
    /// Whether the end of a policy is meant.
    pub(super) may_remove: bool,
    /// Whether a change may begin, as far as other nodes have to do with it.
    pub(super) gate: Gate,
    pub(super) timeout_seconds: u64,
    pub(super) now: u64,
}

/// What is in the way of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    Conflict(Conflict),
    Preparing(Preparation),
    /// Pods, on other nodes too.
    Pods(Pods),
}

impl NodeDecision {
    pub(super) fn of(state: LayoutState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    fn conflict(conflict: Conflict) -> Self {
        Self::of(LayoutState::Conflict(conflict))
    }

    pub(super) fn with(write: NodeWrite, state: Option<LayoutState>) -> Self {
        Self { write: Some(write), state, asks_for_holders: false }
    }

    fn asking(state: LayoutState) -> Self {
        Self { asks_for_holders: true, ..Self::of(state) }
    }

    /// The condition that has to be written, if another one is there; `Some(None)` removes it.
    #[must_use]
    pub fn condition(&self, seen: &SeenNode) -> Option<Option<Condition>> {
        let wanted = self.state.as_ref().map(LayoutState::condition);
        (wanted != seen.condition).then_some(wanted)
    }

    /// What is to be told, which is said once for each reason.
    #[must_use]
    pub fn told(&self, seen: &SeenNode) -> Option<Told> {
        let before = seen.condition.as_ref();
        let Some(state) = &self.state else {
            before?;
            let message = "the node has no layout of kerf's any more".to_owned();
            return Some(Told { reason: "LayoutRemoved".to_owned(), message, is_warning: false });
        };
        let Condition { status, reason, message } = state.condition();
        let is_new = before.is_none_or(|before| (&before.status, &before.reason) != (&status, &reason));
        let is_warning = state.standing() == Standing::False;
        is_new.then(|| Told { reason: format!("Layout{reason}"), message, is_warning })
    }
}

/// What is due on `node`, for which this layout was chosen.
pub(super) fn decide(
    node: &SeenNode,
    chosen: Result<Option<Chosen<'_>>, LayoutState>,
    around: &Around<'_>,
) -> NodeDecision {
    let record = match node.record.as_deref().map(NodeRecord::from_json).transpose() {
        Ok(record) => record,
        Err(error) => {
            let unreadable = LayoutState::Conflict(Conflict::Record { error: error.to_string() });
            return NodeDecision::of(chosen.err().unwrap_or(unreadable));
        }
    };
    let decision = match chosen {
        Ok(chosen) => due(node, record.clone(), chosen, around),
        Err(state) => NodeDecision::of(state),
    };
    match record {
        Some(record) if decision.write.is_none() => begun_before(node, record, decision, around),
        _ => decision,
    }
}

/// What was begun ends by its own promise, whatever is wanted of the node now: until then no pod may come to it.
fn begun_before(
    node: &SeenNode,
    record: NodeRecord,
    decision: NodeDecision,
    around: &Around<'_>,
) -> NodeDecision {
    let labels = PluginLabels::of(&node.labels);
    if record.is_applying() && record.set != labels {
        // Somebody else has set them: what was promised will never be there.
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

/// The same, but for what time does to the record.
fn due(
    node: &SeenNode,
    record: Option<NodeRecord>,
    chosen: Option<Chosen<'_>>,
    around: &Around<'_>,
) -> NodeDecision {
    let labels = PluginLabels::of(&node.labels);
    match record {
        None => unrecorded(node, &labels, chosen, around),
        // GPU Operator sets a label that is missing while the plugin follows.
        Some(record) if record.is_removed() && chosen.is_none() => left(node, &record, around),
        // Somebody else has set them: they are his from now on.
        Some(record) if record.set != labels => NodeDecision::with(NodeWrite { labels, record: None }, None),
        Some(record) => match chosen {
            None if !around.may_remove && record.is_applying() => applying(node, record, None, around),
            None if !around.may_remove => {
                NodeDecision::of(shows(node, &record.layout, &record.promise, None))
            }
            None => removed(node, record, around),
            Some(chosen) if record.layout == chosen.name && record.digest == chosen.layout.digest() => {
                begun(node, record, chosen, around)
            }
            Some(chosen) => begin(node, &labels, chosen, Some(&record), around),
        },
    }
}

/// A node on which kerf has changed nothing.
fn unrecorded(
    node: &SeenNode,
    labels: &PluginLabels,
    chosen: Option<Chosen<'_>>,
    around: &Around<'_>,
) -> NodeDecision {
    let by_hand = labels.config.as_deref().map(|key| (key, named(around.policies, layout_of(key))));
    match (chosen, by_hand) {
        (None, Some((key, Some(layout)))) if !is_managed(&node.labels) && around.keys.contains_key(key) => {
            watched(node, layout)
        }
        (None, _) => NodeDecision::default(),
        (Some(chosen), Some((key, None))) => {
            let (label, layout) = (key.to_owned(), chosen.name.to_owned());
            NodeDecision::conflict(Conflict::LabelByHand { label, layout })
        }
        // The label that names a configuration is nearer to the node than a policy for many.
        (Some(chosen), Some((_, Some(by_hand)))) if by_hand.name == chosen.name || !chosen.by_label => {
            watched(node, by_hand)
        }
        (Some(chosen), _) => begin(node, labels, chosen, None, around),
    }
}

/// A node whose label an admin has set to a key of kerf's: it is told of, and nothing is changed.
fn watched(node: &SeenNode, layout: Chosen<'_>) -> NodeDecision {
    let Some(gpus) = gpus(node) else { return NodeDecision::default() };
    match layout.layout.promise(&gpus) {
        Err(why) => NodeDecision::conflict(Conflict::Unfit { layout: layout.name.to_owned(), why }),
        Ok(promise) => NodeDecision::of(shows(node, layout.name, &promise, Some(layout.layout))),
    }
}

fn gpus(node: &SeenNode) -> Option<NodeGpus> {
    NodeGpus::of(&node.labels, &node.allocatable, &node.boot)
}

/// Whether a node shows what it was promised. `None` for a layout that is not known any more.
fn shows(node: &SeenNode, name: &str, promise: &Promise, layout: Option<&PluginLayout>) -> LayoutState {
    let layout_name = name.to_owned();
    if promise.is_kept_by(&node.allocatable)
        && layout.is_none_or(|layout| is_shared_so(node, promise, layout))
    {
        return LayoutState::InForce { layout: layout_name, promise: promise.to_string() };
    }
    LayoutState::Short { layout: layout_name, promise: promise.to_string(), shown: shown(&node.allocatable) }
}

/// Whether GPU feature discovery, if it is there, tells the same way of sharing: four time slices and four shares of MPS have
/// the same name and count.
fn is_shared_so(node: &SeenNode, promise: &Promise, layout: &PluginLayout) -> bool {
    let Promise::Counts(counts) = promise else { return true };
    let expected = match layout.sharing {
        Sharing::None => "none",
        Sharing::TimeSlicing { .. } => "time-slicing",
        Sharing::Mps { .. } => "mps",
    };
    counts.keys().all(|name| {
        let plain = name.strip_suffix(SHARED).unwrap_or(name);
        node.labels.get(&label(plain, attribute::SHARING_STRATEGY)).is_none_or(|found| found == expected)
    })
}

/// A change that has not begun.
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
    let promise = match chosen.layout.promise(&gpus) {
        Ok(promise) => promise,
        Err(why) => return NodeDecision::conflict(Conflict::Unfit { layout: name(), why }),
    };
    let preparing = |what| NodeDecision::of(LayoutState::Preparing { layout: name(), what });
    match &around.gate {
        Gate::Open => {}
        Gate::Conflict(conflict) => return NodeDecision::conflict(conflict.clone()),
        Gate::Preparing(what) => return preparing(what.clone()),
        Gate::Pods(pods) => {
            return NodeDecision::of(LayoutState::WaitsForStrategy { layout: name(), pods: pods.clone() });
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
    // What has not been seen to work is nothing to go back to.
    let unproven = record.filter(|record| record.is_applying());
    let previous = unproven.map_or(labels, |record| &record.previous).clone();
    let mig_had_failed = mig_state(node) == Some("failed");
    // Devices that were there before keep no promise.
    let is_kept =
        matches!(shows(node, chosen.name, &promise, Some(chosen.layout)), LayoutState::InForce { .. });
    let lag = is_kept.then(|| Lag::begin(node, &set, around.now));
    let state = LayoutState::Applying {
        layout: name(),
        promise: promise.to_string(),
        shown: shown(&node.allocatable),
    };
    let record = NodeRecord {
        layout: name(),
        digest: chosen.layout.digest(),
        node: gpus.fingerprint,
        progress: Progress::Applying { since: around.now, mig_had_failed },
        promise,
        set: set.clone(),
        previous,
        before,
        lag,
    };
    NodeDecision::with(NodeWrite { labels: set, record: Some(record) }, Some(state))
}

pub(super) fn mig_state(node: &SeenNode) -> Option<&str> {
    node.labels.get(MIG_STATE).map(String::as_str)
}

/// A change that has begun.
fn begun(node: &SeenNode, record: NodeRecord, chosen: Chosen<'_>, around: &Around<'_>) -> NodeDecision {
    match &record.progress {
        Progress::Applied => {
            let seen = shows(node, &record.layout, &record.promise, Some(chosen.layout));
            match (&seen, &around.gate) {
                (LayoutState::Short { .. }, Gate::Conflict(conflict @ Conflict::Strategies { .. })) => {
                    NodeDecision::conflict(conflict.clone())
                }
                _ => NodeDecision::of(seen),
            }
        }
        Progress::RolledBack { why } => {
            // A node whose GPUs are not seen now has not changed for the better.
            let is_other = gpus(node).is_some_and(|gpus| is_another(&record.node, &gpus.fingerprint));
            if is_other {
                return begin(node, &record.set.clone(), chosen, Some(&record), around);
            }
            NodeDecision::of(rolled_back(&record, why.clone()))
        }
        Progress::Applying { .. } => applying(node, record, Some(chosen.layout), around),
    }
}

/// A change of which nobody knows yet whether the node can have it. `None` for a layout that is not known any more.
fn applying(
    node: &SeenNode,
    record: NodeRecord,
    layout: Option<&PluginLayout>,
    around: &Around<'_>,
) -> NodeDecision {
    let Progress::Applying { since, mig_had_failed } = record.progress else {
        return NodeDecision::default();
    };
    let seen = shows(node, &record.layout, &record.promise, layout);
    let cuts = layout.map_or(record.set.mig.is_some(), |layout| layout.mig_config.is_some());
    let mig = mig_state(node).filter(|_| cuts);
    let is_cutting = matches!(mig, Some("pending" | "rebooting" | "failed"));
    let lags = record.lag.is_some() && !has_followed(node, &record, around);
    if matches!(seen, LayoutState::InForce { .. }) && !is_cutting && !lags {
        let labels = record.set.clone();
        let record = NodeRecord { progress: Progress::Applied, lag: None, ..record };
        return NodeDecision::with(NodeWrite { labels, record: Some(record) }, Some(seen));
    }
    if mig == Some("failed") && !mig_had_failed {
        let config = record.set.mig.clone().unwrap_or_default();
        return failed(node, record, Failure::MigManager { config }, around);
    }
    let (promise, shown) = (record.promise.to_string(), shown(&node.allocatable));
    if around.now.saturating_sub(since) >= around.timeout_seconds {
        let why = Failure::TimedOut { seconds: around.timeout_seconds, shown };
        return failed(node, record, why, around);
    }
    NodeDecision::of(LayoutState::Applying { layout: record.layout, promise, shown })
}
