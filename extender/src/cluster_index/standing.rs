//! The state of managed nodes. This is for metrics only: no decision reads it.

use super::ClusterIndex;
use crate::metric_labels::Unserved;
use kerf_core::contract::{Condition, ConditionStatus};
use kerf_core::names::NodeName;
use kerf_core::packing::Refusal;
use std::collections::BTreeMap;

impl ClusterIndex {
    /// The managed nodes that serve no pods, each with the reason. A node is managed if it has a GpuNode, or by its
    /// labels ([`is_managed`](kerf_core::managed::is_managed)). A cordoned or lost node without an agent is left out.
    #[must_use]
    pub fn unserved(&self) -> Vec<(&NodeName, Unserved)> {
        let serving = self.nodes.iter().filter_map(|(name, node)| {
            let why = match node.serving().err()? {
                Refusal::AgentNotReady => Unserved::NotReady,
                Refusal::NotConnected => Unserved::NotConnected,
                _ => Unserved::Unreadable,
            };
            Some((name, why))
        });
        serving.chain(self.never_started().map(|name| (name, Unserved::NoAgent))).collect()
    }

    /// The number of managed nodes.
    #[must_use]
    pub fn managed_nodes(&self) -> usize {
        self.nodes.len() + self.never_started().count()
    }

    fn never_started(&self) -> impl Iterator<Item = &NodeName> {
        self.machines.managed().filter(|name| !self.nodes.contains(name.as_str()))
    }

    /// How many `GpuNodes` have each condition in each status. If the agent is not connected, all its conditions count
    /// as unknown.
    #[must_use]
    pub fn condition_counts(&self) -> BTreeMap<(&'static str, &'static str), usize> {
        let all = Condition::ALL
            .iter()
            .flat_map(|kind| ConditionStatus::ALL.map(|status| (*kind, status.as_str())));
        let mut counts: BTreeMap<_, _> = all.map(|key| (key, 0)).collect();
        for (_, node) in self.nodes.iter() {
            for kind in Condition::ALL {
                let status = node.status.condition(kind);
                let status = status.map_or(ConditionStatus::Unknown, |condition| condition.status);
                *counts.entry((kind, status.as_str())).or_default() += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
#[path = "standing_tests.rs"]
mod tests;
