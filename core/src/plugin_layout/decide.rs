//! The whole decision: the writes that are due in the observed state. The caller decides again after every write and
//! every change; when nothing is due, the decision is empty.

use super::choice::{Chosen, LayoutPolicy, choose};
use super::cluster::{Cluster, Verdict};
use super::cluster_policy::{ClusterPolicyWrite, SeenClusterPolicy};
use super::config_map::wanted;
use super::first_seen::FirstSeen;
use super::node::{self, Around, Gate, NodeDecision, SeenNode};
use super::record::NodeRecord;
use super::state::{Conflict, LayoutState, Preparation};
use crate::names::NodeName;
use crate::nvidia_keys::CONFIG;
use std::collections::{BTreeMap, BTreeSet};

/// What the caller observed in the cluster.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'s> {
    /// The layouts of the policies that are now in force, in the policies' order.
    pub policies: &'s [LayoutPolicy<'s>],
    /// Whether some policy file is bad. Then kerf removes no layout, because the missing policy may be in that file.
    pub has_bad_files: bool,
    /// Every Node of the cluster, by name.
    pub nodes: &'s BTreeMap<NodeName, SeenNode>,
    /// The `ConfigMap` with the configuration of NVIDIA's device plugin.
    pub config_map: &'s SeenConfigMap,
    /// The name of that `ConfigMap`, which the `ClusterPolicy` has to contain.
    pub config_map_name: &'s str,
    /// GPU Operator's `ClusterPolicy`; `None` without GPU Operator.
    pub cluster_policy: Option<&'s SeenClusterPolicy>,
    /// The timeout, in seconds, for the plugin to advertise a layout's devices.
    pub timeout_seconds: u64,
    /// The time, in seconds, after which every kubelet has brought a changed `ConfigMap` to the plugin. A label that
    /// names a key before that ends the plugin's config-manager, and the next one starts with the default
    /// configuration.
    pub config_delay_seconds: u64,
    /// Seconds since 1970, for people who read the records. No decision depends on it.
    pub now: u64,
    /// The age of each observed write.
    pub ages: &'s FirstSeen,
}

/// The `ConfigMap` as it was observed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenConfigMap {
    /// Its keys with their texts; `None` if the `ConfigMap` does not exist.
    pub data: Option<BTreeMap<String, String>>,
    /// When the text of each key was last written, in seconds since 1970 by the clock of the leader that wrote it. It
    /// comes from an annotation of the `ConfigMap`.
    pub written: BTreeMap<String, u64>,
    /// Why the last attempt to write it failed.
    pub error: Option<String>,
}

/// The writes that are due, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// The new content of the `ConfigMap`; `None` if it stays.
    pub config_map: Option<ConfigMapWrite>,
    /// The new settings of the `ClusterPolicy`; `None` if they stay.
    pub cluster_policy: Option<ClusterPolicyWrite>,
    /// The decision for every Node, by name.
    pub nodes: BTreeMap<NodeName, NodeDecision>,
    /// Nodes whose device holders the caller has to look up, because the `ClusterPolicy` depends on them.
    pub asks: BTreeSet<NodeName>,
    /// Nodes that must get no pod, because a write to the `ClusterPolicy` is renaming their MIG devices.
    pub renamed: BTreeSet<NodeName>,
    /// Nodes whose MIG devices this write renames. The caller writes only while these nodes have no pod and get none.
    pub closes: BTreeSet<NodeName>,
}

/// The new content of the `ConfigMap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMapWrite {
    /// Every key with its text.
    pub data: BTreeMap<String, String>,
    /// When the text of each key was last written, in seconds since 1970.
    pub written: BTreeMap<String, u64>,
}

pub(super) type Choices<'p> = BTreeMap<NodeName, Result<Option<Chosen<'p>>, LayoutState>>;

/// Decides every write that is due; a pure function of what was observed.
#[must_use]
pub fn decide(seen: Seen<'_>) -> Decision {
    let none = BTreeMap::new();
    let there = seen.config_map.data.as_ref().unwrap_or(&none);
    let records = records(seen.nodes);
    let layouts = seen.policies.iter().map(|policy| (policy.name, policy.layout));
    let keys = wanted(layouts, there, &used(seen.nodes, &records));
    let has_layouts = !seen.policies.is_empty();
    let config_map = (seen.config_map.data.is_some() || has_layouts).then_some(keys.clone());
    let config_map = config_map.filter(|keys| seen.config_map.data.as_ref() != Some(keys));
    let settled = settled(&seen, there);

    let choice =
        |(name, node): (&NodeName, &SeenNode)| (name.clone(), choose(seen.policies, name, &node.labels));
    let choices: Choices<'_> = seen.nodes.iter().map(choice).collect();
    let cluster = Cluster { seen, choices: &choices };
    let mut verdict = match seen.cluster_policy {
        Some(policy) if cluster.is_active() => cluster.verdict(policy, &keys),
        // The ClusterPolicy comes last, once no node has a record, and stays while a bad file may contain the missing
        // policy.
        Some(policy) if !has_layouts && records.is_empty() && !seen.has_bad_files => cluster.undo(policy),
        _ => Verdict::default(),
    };
    if config_map.is_some() {
        // The ConfigMap comes first, because the ClusterPolicy must not name one that does not exist.
        verdict.write = None;
    }
    let (renamed, closes) = (cluster.renamed(), cluster.closes(verdict.write.as_ref()));
    let first = match (&seen.config_map.error, &config_map) {
        (Some(error), Some(_)) => Gate::Conflict(Conflict::ConfigMap { error: error.clone() }),
        (None, Some(_)) => Gate::Preparing(Preparation::ConfigMap),
        (_, None) => Gate::Open,
    };
    let gates = Gates { first, verdict: &verdict };
    let of_node = |(name, chosen): (&NodeName, &Result<Option<Chosen<'_>>, LayoutState>)| {
        let around = Around {
            policies: seen.policies,
            there,
            keys: &settled,
            may_remove: !seen.has_bad_files,
            gate: gates.for_node(name),
            timeout_seconds: seen.timeout_seconds,
            now: seen.now,
            ages: seen.ages,
            name,
        };
        let decision = node::decide(seen.nodes.get(name)?, chosen.clone(), &around);
        let is_none = decision == NodeDecision::default();
        let instead = if is_none { cluster.state_without_layout(&verdict, name) } else { None };
        Some((name.clone(), instead.unwrap_or(decision)))
    };
    let nodes = choices.iter().filter_map(of_node).collect();
    let config_map = config_map.map(|data| write(&seen, there, data));
    Decision { config_map, cluster_policy: verdict.write, nodes, asks: verdict.asks, renamed, closes }
}

/// The keys whose text every kubelet has had time to bring to the plugin.
fn settled(seen: &Seen<'_>, there: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let age = |key: &str| seen.config_map.written.get(key).map(|time| seen.ages.age_of_key(key, *time));
    let is_settled = |key: &str| age(key).is_none_or(|age| age >= seen.config_delay_seconds);
    there.iter().filter(|(key, _)| is_settled(key)).map(|(key, text)| (key.clone(), text.clone())).collect()
}

/// The `ConfigMap` with a new time for each text that changes.
fn write(
    seen: &Seen<'_>,
    there: &BTreeMap<String, String>,
    data: BTreeMap<String, String>,
) -> ConfigMapWrite {
    let written_at = |key: &String, text: &String| {
        let before = seen.config_map.written.get(key).filter(|_| there.get(key) == Some(text));
        before.copied().unwrap_or(seen.now)
    };
    let written = data.iter().map(|(key, text)| (key.clone(), written_at(key, text))).collect();
    ConfigMapWrite { data, written }
}

fn records(nodes: &BTreeMap<NodeName, SeenNode>) -> Vec<NodeRecord> {
    nodes.values().filter_map(|node| NodeRecord::from_json(node.record.as_deref()?).ok()).collect()
}

/// The keys that nodes use, or may be rolled back to.
fn used<'n>(nodes: &'n BTreeMap<NodeName, SeenNode>, records: &'n [NodeRecord]) -> BTreeSet<&'n str> {
    let had = records.iter().flat_map(|record| [&record.set, &record.previous, &record.before]);
    let had = had.filter_map(|labels| labels.key());
    nodes.values().filter_map(|node| node.labels.get(CONFIG).map(String::as_str)).chain(had).collect()
}

/// The conditions for a change of any node.
struct Gates<'v> {
    first: Gate,
    verdict: &'v Verdict,
}

impl Gates<'_> {
    fn for_node(&self, name: &NodeName) -> Gate {
        match (self.verdict.of_nodes.get(name), &self.first) {
            (Some(gate), _) => gate.clone(),
            (None, Gate::Open) => self.verdict.for_all.clone().unwrap_or(Gate::Open),
            (None, first) => first.clone(),
        }
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
