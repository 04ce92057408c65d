//! All of it together: what is to be written now, given what was found. Asked again after every write and every change, it comes
//! to rest when nothing is due.

use super::choice::{Chosen, choose};
use super::cluster::{Cluster, Verdict};
use super::cluster_policy::{ClusterPolicyWrite, SeenClusterPolicy};
use super::config_map::wanted;
use super::node::{self, Around, Gate, NodeDecision, SeenNode};
use super::record::NodeRecord;
use super::state::{Conflict, LayoutState, Preparation};
use crate::names::NodeName;
use crate::nvidia_keys::CONFIG;
use crate::policy::Policies;
use std::collections::{BTreeMap, BTreeSet};

/// What was found.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'s> {
    /// The policies in force.
    pub policies: &'s Policies,
    /// Whether some policy file is bad: then a policy that is not there may only be misspelt, and nothing is removed for it.
    pub has_bad_files: bool,
    /// Every Node.
    pub nodes: &'s BTreeMap<NodeName, SeenNode>,
    /// The `ConfigMap` of NVIDIA's device plugin.
    pub config_map: &'s SeenConfigMap,
    /// Its name.
    pub config_map_name: &'s str,
    /// GPU Operator's `ClusterPolicy`; `None` without GPU Operator.
    pub cluster_policy: Option<&'s SeenClusterPolicy>,
    /// How long the plugin has to show a layout.
    pub timeout_seconds: u64,
    /// How long a kubelet may take to bring a changed `ConfigMap` to the plugin. A label that names a key which is not there
    /// yet ends the plugin's config-manager, and its next one begins with the default configuration.
    pub config_delay_seconds: u64,
    /// Seconds since 1970.
    pub now: u64,
}

/// The `ConfigMap` as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenConfigMap {
    /// What it holds; `None` if it is not there.
    pub data: Option<BTreeMap<String, String>>,
    /// When the text of each key was written last, in seconds since 1970, as its annotation tells.
    pub written: BTreeMap<String, u64>,
    /// Why the last try to write it failed.
    pub error: Option<String>,
}

/// What is due, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// What the `ConfigMap` is to hold, if it changes.
    pub config_map: Option<ConfigMapWrite>,
    /// What the `ClusterPolicy` is to say, if it changes.
    pub cluster_policy: Option<ClusterPolicyWrite>,
    /// What is due on each Node.
    pub nodes: BTreeMap<NodeName, NodeDecision>,
    /// The `ClusterPolicy` depends on who holds devices of these: of all of them, or of one that is held.
    pub asks: BTreeSet<NodeName>,
    /// Nodes to which no pod may come: their MIG devices are getting other names by what was written into the `ClusterPolicy`.
    pub renamed: BTreeSet<NodeName>,
    /// Those whose MIG devices get other names by what is written now, which is written only if no pod is there or comes.
    pub closes: BTreeSet<NodeName>,
}

/// What the `ConfigMap` is to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMapWrite {
    /// Its keys with their texts.
    pub data: BTreeMap<String, String>,
    /// When the text of each was written last.
    pub written: BTreeMap<String, u64>,
}

pub(super) type Choices<'p> = BTreeMap<NodeName, Result<Option<Chosen<'p>>, LayoutState>>;

/// What is due.
#[must_use]
pub fn decide(seen: Seen<'_>) -> Decision {
    let none = BTreeMap::new();
    let there = seen.config_map.data.as_ref().unwrap_or(&none);
    let records = records(seen.nodes);
    let layouts = seen.policies.layouts().map(|(rules, layout)| (rules.name.as_str(), layout));
    let keys = wanted(layouts, there, &used(seen.nodes, &records));
    let has_layouts = seen.policies.layouts().next().is_some();
    let config_map = (seen.config_map.data.is_some() || has_layouts).then_some(keys.clone());
    let config_map = config_map.filter(|keys| seen.config_map.data.as_ref() != Some(keys));
    let settled = settled(&seen, there);

    let choice =
        |(name, node): (&NodeName, &SeenNode)| (name.clone(), choose(seen.policies, name, &node.labels));
    let choices: Choices<'_> = seen.nodes.iter().map(choice).collect();
    let cluster = Cluster { seen, choices: &choices };
    let mut verdict = match seen.cluster_policy {
        Some(policy) if cluster.is_active() => cluster.verdict(policy, &keys),
        Some(policy) if !has_layouts && records.is_empty() && !seen.has_bad_files => cluster.undo(policy),
        _ => Verdict::default(),
    };
    if config_map.is_some() {
        // What it is to name has to be there before.
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
            keys: &settled,
            may_remove: !seen.has_bad_files,
            gate: gates.of(name),
            timeout_seconds: seen.timeout_seconds,
            now: seen.now,
        };
        let decision = node::decide(seen.nodes.get(name)?, chosen.clone(), &around);
        let is_none = decision == NodeDecision::default();
        let told = if is_none { cluster.told(&verdict, name) } else { None };
        Some((name.clone(), told.unwrap_or(decision)))
    };
    let nodes = choices.iter().filter_map(of_node).collect();
    let config_map = config_map.map(|data| write(&seen, there, data));
    Decision { config_map, cluster_policy: verdict.write, nodes, asks: verdict.asks, renamed, closes }
}

/// The keys that every kubelet has brought to the plugin.
fn settled(seen: &Seen<'_>, there: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let age = |key: &str| seen.config_map.written.get(key).map(|at| seen.now.saturating_sub(*at));
    let is_settled = |key: &str| age(key).is_none_or(|age| age >= seen.config_delay_seconds);
    there.iter().filter(|(key, _)| is_settled(key)).map(|(key, text)| (key.clone(), text.clone())).collect()
}

/// The `ConfigMap` with the time of each text that is new.
fn write(
    seen: &Seen<'_>,
    there: &BTreeMap<String, String>,
    data: BTreeMap<String, String>,
) -> ConfigMapWrite {
    let at = |key: &String, text: &String| {
        let before = seen.config_map.written.get(key).filter(|_| there.get(key) == Some(text));
        before.copied().unwrap_or(seen.now)
    };
    let written = data.iter().map(|(key, text)| (key.clone(), at(key, text))).collect();
    ConfigMapWrite { data, written }
}

fn records(nodes: &BTreeMap<NodeName, SeenNode>) -> Vec<NodeRecord> {
    nodes.values().filter_map(|node| NodeRecord::from_json(node.record.as_deref()?).ok()).collect()
}

/// The keys that nodes have, or may be led back to.
fn used<'n>(nodes: &'n BTreeMap<NodeName, SeenNode>, records: &'n [NodeRecord]) -> BTreeSet<&'n str> {
    let had = records.iter().flat_map(|record| [&record.set, &record.previous, &record.before]);
    let had = had.filter_map(|labels| labels.key());
    nodes.values().filter_map(|node| node.labels.get(CONFIG).map(String::as_str)).chain(had).collect()
}

/// What comes before the nodes.
struct Gates<'v> {
    first: Gate,
    verdict: &'v Verdict,
}

impl Gates<'_> {
    fn of(&self, name: &NodeName) -> Gate {
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
