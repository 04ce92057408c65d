//! How the layouts of a cluster's nodes decide GPU Operator's `ClusterPolicy`. There is one for the whole cluster, and
//! its MIG strategy names the MIG devices of every node.

use super::choice::{Chosen, named};
use super::cluster_policy::{ClusterPolicyRecord, ClusterPolicyWrite, Outlook, Renaming, SeenClusterPolicy};
use super::config_map::layout_of;
use super::decide::{Choices, Seen};
use super::expected_allocatable::shown;
use super::gpus::NodeGpus;
use super::layout::{DEFAULT_TEXT, MigStrategy};
use super::node::{Gate, Holders, NodeDecision, SeenNode};
use super::record::{NodeRecord, Progress};
use super::state::{Conflict, LayoutState, Pods, Preparation};
use crate::managed::is_managed;
use crate::names::NodeName;
use crate::nvidia_keys::CONFIG;
use std::collections::{BTreeMap, BTreeSet};

/// The consequences of the `ClusterPolicy` for the nodes.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) write: Option<ClusterPolicyWrite>,
    pub(super) for_all: Option<Gate>,
    pub(super) of_nodes: BTreeMap<NodeName, Gate>,
    /// Nodes whose device holders must be known first.
    pub(super) asks: BTreeSet<NodeName>,
    /// States of nodes without a layout on whose pods the end of all layouts depends.
    pub(super) states: BTreeMap<NodeName, NodeDecision>,
}

/// The nodes under GPU Operator.
pub(super) struct Cluster<'s> {
    pub(super) seen: Seen<'s>,
    pub(super) choices: &'s Choices<'s>,
}

/// A node whose layout sets a MIG strategy.
struct Wish<'s> {
    node: &'s NodeName,
    layout: &'s str,
    strategy: MigStrategy,
}

impl<'s> Cluster<'s> {
    fn chosen(&self, name: &NodeName) -> Option<Chosen<'s>> {
        *self.choices.get(name)?.as_ref().ok()?
    }

    fn gpus(node: &SeenNode) -> Option<NodeGpus> {
        NodeGpus::from_labels(&node.labels, &node.allocatable, &node.boot)
    }

    /// Whether some node has a layout, or will get one that its GPUs can have.
    pub(super) fn is_active(&self) -> bool {
        self.seen.nodes.iter().any(|(name, node)| {
            let by_hand = || named(self.seen.policies, layout_of(node.labels.get(CONFIG)?));
            let by_hand = || by_hand().filter(|_| !is_managed(&node.labels));
            let Some(chosen) = self.chosen(name).or_else(by_hand) else { return false };
            Self::gpus(node).is_some_and(|gpus| chosen.layout.expected(&gpus).is_ok())
        })
    }

    /// The nodes whose layout sets a MIG strategy, in the order of [`Self::precedence`], then of the policies.
    fn wishes(&self) -> Vec<Wish<'s>> {
        let of_layout = |layout: &'s str| {
            self.seen.nodes.iter().filter_map(move |(node, seen)| {
                let chosen = self.chosen(node).filter(|chosen| chosen.name == layout)?;
                chosen.layout.expected(&Self::gpus(seen)?).ok()?;
                let strategy = chosen.layout.mig_strategy;
                (strategy != MigStrategy::None).then_some(Wish { node, layout, strategy })
            })
        };
        let mut wishes: Vec<Wish<'s>> =
            self.seen.policies.iter().flat_map(|policy| of_layout(policy.name)).collect();
        wishes.sort_by_key(|wish| self.precedence(wish.node));
        wishes
    }

    /// The precedence of a node's wish; the wish with the least one wins. A layout in force comes before one that kerf
    /// applies, and both come before one that kerf has not begun.
    fn precedence(&self, name: &NodeName) -> u8 {
        let record =
            self.seen.nodes.get(name).and_then(|node| NodeRecord::from_json(node.record.as_deref()?).ok());
        let digest = self.chosen(name).map(|chosen| chosen.layout.digest());
        match record.filter(|record| Some(&record.digest) == digest.as_ref()).map(|record| record.progress) {
            Some(Progress::Applied) => 0,
            Some(Progress::Applying { .. }) => 1,
            Some(Progress::RolledBack { .. }) | None => 2,
        }
    }

    pub(super) fn verdict(&self, policy: &SeenClusterPolicy, keys: &BTreeMap<String, String>) -> Verdict {
        let wishes = self.wishes();
        let mut verdict = Verdict::default();
        let mut strategy = wishes.first().map(|wish| wish.strategy);
        let outlook = |strategy| policy.outlook(self.seen.config_map_name, keys, strategy);
        // A new strategy would rename MIG devices that pods hold, so it stays as it is while something blocks it.
        if let Outlook::Write(write) = outlook(strategy)
            && let Some(first) = wishes.first()
            && policy.changes_strategy(&write.settings)
            && let Some(gate) = self.in_the_way(first, &mut verdict.asks)
        {
            verdict.of_nodes.extend(wishes.iter().map(|wish| (wish.node.clone(), gate.clone())));
            strategy = None;
        }
        for wish in &wishes {
            let first = wishes.first().filter(|first| first.strategy != wish.strategy);
            if let Some(other) = first {
                let conflict = Conflict::Strategies {
                    layout: wish.layout.to_owned(),
                    wanted: wish.strategy.to_string(),
                    other: other.layout.to_owned(),
                    others: other.strategy.to_string(),
                };
                verdict.of_nodes.insert(wish.node.clone(), Gate::Conflict(conflict));
            }
        }
        verdict.for_all = match outlook(strategy) {
            Outlook::Clear if policy.is_new(self.seen.ages, self.seen.config_delay_seconds) => {
                Some(Gate::Preparing(Preparation::Rollout(policy.name.clone())))
            }
            Outlook::Clear => None,
            Outlook::Write(write) => {
                verdict.write = Some(self.dated(policy, *write));
                Some(Gate::Preparing(Preparation::ClusterPolicy))
            }
            Outlook::NotReady(name) => Some(Gate::Preparing(Preparation::Operator(name))),
            Outlook::OtherConfigMap { policy, config_map } => {
                Some(Gate::Conflict(Conflict::OtherConfigMap { policy, config_map }))
            }
        };
        verdict
    }

    /// The static nodes on which NVIDIA's plugin offers MIG devices.
    fn cut(&self) -> impl Iterator<Item = (&'s NodeName, &'s SeenNode)> {
        let is_cut = |node: &SeenNode| Self::gpus(node).is_some_and(|gpus| gpus.has_mig_devices);
        self.seen.nodes.iter().filter(move |(_, node)| is_cut(node) && !is_managed(&node.labels))
    }

    /// The obstacle to a change of the strategy, which would rename the MIG devices of every node that has some.
    fn in_the_way(&self, first: &Wish<'_>, asks: &mut BTreeSet<NodeName>) -> Option<Gate> {
        let is_bystander =
            |name| self.chosen(name).is_none_or(|chosen| chosen.layout.mig_strategy == MigStrategy::None);
        if let Some((name, _)) = self.cut().find(|(name, _)| is_bystander(name)) {
            let (layout, wanted) = (first.layout.to_owned(), first.strategy.to_string());
            return Some(Gate::Conflict(Conflict::Bystander { layout, wanted, node: name.clone() }));
        }
        self.holders(asks).map(Gate::Pods)
    }

    /// The pods that hold MIG devices; `None` if it is certain that no pod does. Nodes without an answer go into
    /// `asks`.
    fn holders(&self, asks: &mut BTreeSet<NodeName>) -> Option<Pods> {
        let mut held = Vec::new();
        for (name, node) in self.cut() {
            match &node.holders {
                Holders::Known(pods) => held.extend(pods.iter().cloned()),
                Holders::Unknown => drop(asks.insert(name.clone())),
            }
        }
        (!asks.is_empty() || !held.is_empty()).then_some(Pods(held))
    }

    /// Adds the time of the write, and the nodes whose MIG devices it renames.
    fn dated(&self, policy: &SeenClusterPolicy, mut write: ClusterPolicyWrite) -> ClusterPolicyWrite {
        let nodes: BTreeSet<NodeName> = self.cut().map(|(name, _)| name.clone()).collect();
        let renames = policy.changes_strategy(&write.settings) && !nodes.is_empty();
        if let Some(record) = &mut write.record {
            record.written = self.seen.now;
            if renames {
                let Seen { now: since, timeout_seconds: timeout, .. } = self.seen;
                let early = self.cut().filter(|(_, node)| write.settings.are_shown(&node.allocatable));
                let early = early.map(|(name, _)| name.clone()).collect();
                record.renaming = Some(Renaming { since, nodes, timeout, early });
            }
        }
        write
    }

    /// Ends all layouts. This may rename MIG devices too.
    pub(super) fn undo(&self, policy: &SeenClusterPolicy) -> Verdict {
        let mut verdict = Verdict::default();
        let Some(mut write) = policy.undo() else { return verdict };
        if policy.settings.config_map != write.settings.config_map {
            verdict.states = self.kept_by_hand(policy);
        }
        if !verdict.states.is_empty() {
            return verdict;
        }
        if !policy.changes_strategy(&write.settings) {
            // The record stays while it closes a node, because the set of renamed nodes is in it.
            verdict.write = policy.renamed(self.seen.nodes, self.seen.ages).is_empty().then_some(write);
        } else if self.holders(&mut verdict.asks).is_some() {
            let strategy = write.settings.mig_strategy.map_or("its default".to_owned(), |it| it.to_string());
            verdict.states = self.undo_waits(&strategy);
        } else {
            if self.cut().next().is_some() {
                // A record with nothing but the renaming remains, because it closes the nodes until their devices are
                // renamed.
                let (set, before) = (write.settings.clone(), write.settings.clone());
                write.record = Some(ClusterPolicyRecord { set, before, written: 0, renaming: None });
            }
            verdict.write = Some(self.dated(policy, write));
        }
        verdict
    }

    /// States of nodes whose plugin reads kerf's `ConfigMap` by a label that kerf did not set. For them the
    /// `ClusterPolicy` must keep naming it: otherwise the plugin would start with its own configuration, and offer
    /// again what pods hold.
    fn kept_by_hand(&self, policy: &SeenClusterPolicy) -> BTreeMap<NodeName, NodeDecision> {
        let keys = self.seen.config_map.data.as_ref();
        let state = |(name, node): (&NodeName, &SeenNode)| {
            let label = node
                .labels
                .get(CONFIG)
                .filter(|_| !is_managed(&node.labels) && Self::gpus(node).is_some())?;
            keys?.get(label).filter(|text| *text != DEFAULT_TEXT)?;
            let (label, policy) = (label.clone(), policy.name.clone());
            let conflict = Conflict::KeptByHand { label, policy };
            Some((name.clone(), NodeDecision::from_state(LayoutState::Conflict(conflict))))
        };
        self.seen.nodes.iter().filter_map(state).collect()
    }

    /// States of nodes whose pods block the end of all layouts.
    fn undo_waits(&self, strategy: &str) -> BTreeMap<NodeName, NodeDecision> {
        let state = |pods| LayoutState::UndoWaits { strategy: strategy.to_owned(), pods };
        // A node that already has a condition keeps it until its holders are known.
        let is_concerned = |node: &SeenNode| node.condition.is_some() || node.holders != Holders::Unknown;
        let waits = self.cut().filter(|(_, node)| is_concerned(node));
        waits.filter_map(|(name, node)| Some((name.clone(), node.waits(state)?))).collect()
    }

    /// Nodes whose MIG devices an earlier write is renaming.
    pub(super) fn renamed(&self) -> BTreeSet<NodeName> {
        let policy = self.seen.cluster_policy;
        policy.map(|policy| policy.renamed(self.seen.nodes, self.seen.ages)).unwrap_or_default()
    }

    /// The state of a node without a layout that the `ClusterPolicy` closes, or whose pods block it.
    pub(super) fn state_without_layout(&self, verdict: &Verdict, name: &NodeName) -> Option<NodeDecision> {
        let node = self.seen.nodes.get(name).filter(|node| !is_managed(&node.labels))?;
        let age = |renaming: &Renaming| self.seen.ages.age_of_renaming(renaming);
        let is_renamed = |policy: &&SeenClusterPolicy| policy.is_renaming(name, &node.allocatable, age);
        let policy = self.seen.cluster_policy.filter(is_renamed);
        let closed = policy.map(|policy| {
            let (policy, shown) = (policy.name.clone(), shown(&node.allocatable));
            NodeDecision::from_state(LayoutState::Renaming { policy, shown })
        });
        closed.or_else(|| verdict.states.get(name).cloned())
    }

    /// Nodes whose MIG devices this write renames.
    pub(super) fn closes(&self, write: Option<&ClusterPolicyWrite>) -> BTreeSet<NodeName> {
        let policy = self.seen.cluster_policy.zip(write);
        let changes = policy.is_some_and(|(policy, write)| policy.changes_strategy(&write.settings));
        self.cut().filter(|_| changes).map(|(name, _)| name.clone()).collect()
    }
}
