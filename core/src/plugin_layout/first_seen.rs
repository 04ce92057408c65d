//! How long each write has been visible, by this leader's own clock since it first read the write. The times in records
//! come from the clock of the leader that wrote them. That may be another leader, or this one before an adjustment of
//! its clock. These times only distinguish one write from another, and inform people. Therefore a new leader waits as
//! long as one that has just written.

use super::SeenNode;
use super::cluster_policy::{ClusterPolicyRecord, Renaming, SeenClusterPolicy};
use super::decide::SeenConfigMap;
use super::record::{NodeRecord, PluginLabels};
use crate::names::NodeName;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    Labels(NodeName, PluginLabels),
    Key(String),
    ClusterPolicy,
    Strategy,
}

/// When this leader first saw each write. The time in the record is part of the key, so that a repeated write counts as
/// new.
#[derive(Debug, Clone, Default)]
pub struct FirstSeen {
    first: BTreeMap<(Written, u64), u64>,
    clock: u64,
}

impl FirstSeen {
    /// Adds the writes that are there now, and drops the others. `clock` counts seconds from any start and is never
    /// adjusted.
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

    /// Seconds since the labels of this record were first seen.
    pub(super) fn age_of_labels(&self, node: &NodeName, record: &NodeRecord) -> u64 {
        labels(node, record).map_or(0, |written| self.age(&written))
    }

    /// Seconds since this text of the key was first seen; `at` is the time in the annotation.
    pub(super) fn age_of_key(&self, key: &str, at: u64) -> u64 {
        self.age(&(Written::Key(key.to_owned()), at))
    }

    pub(super) fn age_of_cluster_policy(&self, record: &ClusterPolicyRecord) -> u64 {
        self.age(&policy(record))
    }

    /// Seconds since the strategy that renames MIG devices was first seen.
    pub(super) fn age_of_renaming(&self, renaming: &Renaming) -> u64 {
        self.age(&strategy(renaming))
    }

    /// Seconds since the write was first seen. A write that was never seen counts as new, so that kerf waits too long
    /// rather than too short.
    fn age(&self, written: &(Written, u64)) -> u64 {
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
#[path = "first_seen_tests.rs"]
mod tests;
