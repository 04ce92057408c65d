//! How long what was written has been there, by the clock of the leader that looks, from when it first saw it. The times in records
//! are of the clock of whoever wrote them, which may be another leader's, or this one's before it was set: they tell one write from
//! another, and people when it was. So a leader that is new waits as long as one that wrote it now.

use super::SeenNode;
use super::cluster_policy::{ClusterPolicyRecord, Renaming, SeenClusterPolicy};
use super::decide::SeenConfigMap;
use super::record::{NodeRecord, PluginLabels};
use crate::names::NodeName;
use std::collections::BTreeMap;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    Labels(NodeName, PluginLabels),
    Key(String),
    ClusterPolicy,
    Strategy,
}

/// When each write was seen first. Each has the time with it that its record tells.
#[derive(Debug, Clone, Default)]
pub struct Ages {
    first: BTreeMap<(Written, u64), u64>,
    clock: u64,
}

impl Ages {
    /// Takes in what is there now, and forgets what is not. `clock` is in seconds since any moment, and never set.
    pub fn look(
        &mut self,
        clock: u64,
        nodes: &BTreeMap<NodeName, SeenNode>,
        config_map: &SeenConfigMap,
        cluster_policy: Option<&SeenClusterPolicy>,
    ) {
        let labels = nodes.iter().filter_map(|(name, node)| {
            let record = NodeRecord::from_json(node.record.as_deref()?).ok()?;
            labels(name, &record)
        });
        let keys = config_map.written.iter().map(|(key, at)| (Written::Key(key.clone()), *at));
        let record = cluster_policy.and_then(|policy| policy.record.as_ref());
        let policy = record.map(policy);
        let renaming = record.and_then(|record| record.renaming.as_ref()).map(strategy);
        let there = labels.chain(keys).chain(policy).chain(renaming);
        let seen = |written| {
            let first = self.first.get(&written).copied().unwrap_or(clock);
            (written, first)
        };
        self.first = there.map(seen).collect();
        self.clock = clock;
    }

    /// How long the labels of a node's record are written.
    pub(super) fn of_labels(&self, node: &NodeName, record: &NodeRecord) -> u64 {
        labels(node, record).map_or(0, |written| self.of(&written))
    }

    /// How long a key of the `ConfigMap` has its text, which was written at this time.
    pub(super) fn of_key(&self, key: &str, at: u64) -> u64 {
        self.of(&(Written::Key(key.to_owned()), at))
    }

    /// How long the `ClusterPolicy` is written.
    pub(super) fn of_cluster_policy(&self, record: &ClusterPolicyRecord) -> u64 {
        self.of(&policy(record))
    }

    /// How long the strategy is written that renames MIG devices.
    pub(super) fn of_renaming(&self, renaming: &Renaming) -> u64 {
        self.of(&strategy(renaming))
    }

    /// What was never seen is new.
    fn of(&self, written: &(Written, u64)) -> u64 {
        self.first.get(written).map_or(0, |first| self.clock.saturating_sub(*first))
    }
}

fn labels(node: &NodeName, record: &NodeRecord) -> Option<(Written, u64)> {
    Some((Written::Labels(node.clone(), record.set.clone()), record.since()?))
}

fn policy(record: &ClusterPolicyRecord) -> (Written, u64) {
    (Written::ClusterPolicy, record.written)
}

fn strategy(renaming: &Renaming) -> (Written, u64) {
    (Written::Strategy, renaming.since)
}

#[cfg(test)]
#[path = "ages_tests.rs"]
mod tests;
