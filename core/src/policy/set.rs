//! All policies that are in force: those for pods, of which the first that matches a pod holds, and those for nodes.

use super::matching::{Mismatch, covers, has_all, in_list, of_labels};
use super::signature::Signature;
use super::{PodFacts, Policy};
use crate::contract::NodePolicy;
use crate::mig::Profile;
use crate::names::NodeName;
use std::collections::BTreeMap;

/// The policies in force, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policies {
    /// For pods.
    pub pods: Vec<Policy>,
    /// For nodes.
    pub nodes: Vec<NodeRules>,
}

/// A policy for the nodes that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRules {
    /// Its name.
    pub name: String,
    /// Node names, each of which may end in `*`; all nodes if there is none.
    pub names: Vec<String>,
    /// Labels that a node must have, with their values.
    pub labels: BTreeMap<String, String>,
    /// What its GPUs may be used for.
    pub policy: NodePolicy,
}

impl Policies {
    /// The policy for a pod: the first that matches it. `None` if there is none, and then it may ask for nothing.
    #[must_use]
    pub fn of_pod(&self, pod: &PodFacts) -> Option<&Policy> {
        let signature = Signature::of_pod(pod);
        let mut likely = self.pods.iter().filter(|policy| policy.signature().may_be_for(signature));
        likely.find(|policy| policy.spec().pods.is_for(pod))
    }

    /// The policies that were tried for a pod before the one that holds, or all if none does, each with what kept it away.
    #[must_use]
    pub fn passed<'p>(&'p self, pod: &'p PodFacts) -> Vec<(&'p Policy, Mismatch<'p>)> {
        let tried = self.pods.iter().map(|policy| Some((policy, policy.spec().pods.mismatch(pod)?)));
        tried.map_while(|tried| tried).collect()
    }

    /// The policy for a node: the first that names it.
    #[must_use]
    pub fn of_node(&self, name: &NodeName, labels: &BTreeMap<String, String>) -> Option<&NodeRules> {
        self.nodes.iter().find(|rules| rules.mismatch(name, labels).is_none())
    }

    /// How much room for a profile counts, in percent of what it counts for those that are not named: the first policy
    /// that says so holds for the cluster.
    #[must_use]
    pub fn weights(&self) -> BTreeMap<Profile, u32> {
        let mut weights = self.pods.iter().map(Policy::weights).filter(|weights| !weights.is_empty());
        weights.next().cloned().unwrap_or_default()
    }
}

impl NodeRules {
    /// The first field that keeps the policy from this node; `None` if it is for it.
    #[must_use]
    pub fn mismatch<'p>(
        &'p self,
        name: &'p NodeName,
        found: &'p BTreeMap<String, String>,
    ) -> Option<Mismatch<'p>> {
        if !in_list(&self.names, name.as_str()) {
            return Some(Mismatch::NodeName(name.as_str()));
        }
        of_labels(&self.labels, found)
    }

    /// Whether the policy is for every node that `other` is for.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        covers(&self.names, &other.names) && has_all(&self.labels, &other.labels)
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
