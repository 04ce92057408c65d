//! All policies that are in force: those for pods, of which the first that matches a pod holds, and those for nodes.

use super::matching::{Mismatch, covers, has_all, in_list, of_labels};
use super::signature::Signature;
use super::{Dialect, PodFacts, Policy};
use crate::contract::NodePolicy;
use crate::mig::Profile;
use crate::names::NodeName;
use crate::plugin_layout::PluginLayout;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// The policies in force, in the order in which they are tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policies {
    /// For pods.
    pub pods: Vec<Policy>,
    /// For nodes.
    pub nodes: Vec<NodeRules>,
}

/// No policy can be said to be for a pod: labels of its namespace decide, and they are not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "policy {policy} selects namespaces by label, and kerf has not seen the labels of namespace {namespace} yet; create the pod again in a moment"
)]
pub struct Undecided {
    /// The policy.
    pub policy: String,
    /// The namespace.
    pub namespace: String,
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
    /// What holds for them.
    pub rule: NodeRule,
}

/// What a policy says of nodes: of kerf's own, or of those that NVIDIA's device plugin serves. No policy is for both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRule {
    /// What the GPUs of kerf's own nodes may be used for.
    Managed(NodePolicy),
    /// The layout of the GPUs that NVIDIA's device plugin serves.
    Plugin(PluginLayout),
}

impl Policies {
    /// The policy for a pod: the first that matches it. `None` if there is none, and then it may ask for nothing.
    ///
    /// Where the namespace's labels are not known, a policy that asks for them matches nobody; see [`decided`](Self::decided).
    #[must_use]
    pub fn of_pod(&self, pod: &PodFacts) -> Option<&Policy> {
        self.likely(pod).find(|policy| policy.spec().pods.is_for(pod))
    }

    /// The same where nobody may be taken for another's: an error if the first policy that matches in all else asks for labels of
    /// the namespace, and these are not known.
    pub fn decided(&self, pod: &PodFacts) -> Result<Option<&Policy>, Undecided> {
        for policy in self.likely(pod) {
            match policy.spec().pods.mismatch(pod) {
                None => return Ok(Some(policy)),
                Some(Mismatch::UnknownNamespace(namespace)) => {
                    let (policy, namespace) = (policy.name().to_owned(), namespace.to_owned());
                    return Err(Undecided { policy, namespace });
                }
                Some(_) => {}
            }
        }
        Ok(None)
    }

    /// Whether some policy asks for labels of namespaces.
    #[must_use]
    pub fn read_namespace_labels(&self) -> bool {
        self.pods.iter().any(|policy| policy.spec().pods.reads_namespace_labels())
    }

    /// The policies that their signatures do not keep from the pod.
    fn likely(&self, pod: &PodFacts) -> impl Iterator<Item = &Policy> {
        let signature = Signature::of_pod(pod);
        self.pods.iter().filter(move |policy| policy.signature().may_be_for(signature))
    }

    /// The GPU models that the policies name. One may come several times.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let specs = self.pods.iter().map(Policy::spec);
        let of_pods = specs
            .flat_map(|spec| spec.pods.models.iter().chain(&spec.models).chain(spec.kinds_by_model.keys()));
        let rules = self.nodes.iter().filter_map(NodeRules::managed).flat_map(|policy| &policy.gpus);
        of_pods.chain(rules.flat_map(|rule| &rule.select.models)).map(String::as_str)
    }

    /// The policies that were tried for a pod before the one that holds, or all if none does, each with what kept it away.
    #[must_use]
    pub fn passed<'p>(&'p self, pod: &'p PodFacts) -> Vec<(&'p Policy, Mismatch<'p>)> {
        let tried = self.pods.iter().map(|policy| Some((policy, policy.spec().pods.mismatch(pod)?)));
        tried.map_while(|tried| tried).collect()
    }

    /// The policy for one of kerf's own nodes: the first that names it.
    #[must_use]
    pub fn of_node(&self, name: &NodeName, labels: &BTreeMap<String, String>) -> Option<&NodeRules> {
        let mut managed = self.nodes.iter().filter(|rules| rules.managed().is_some());
        managed.find(|rules| rules.mismatch(name, labels).is_none())
    }

    /// The policies for nodes that NVIDIA's device plugin serves, in the order in which they are tried.
    pub fn layouts(&self) -> impl Iterator<Item = (&NodeRules, &PluginLayout)> {
        self.nodes.iter().filter_map(|rules| Some((rules, rules.layout()?)))
    }

    /// The dialects that some policy takes. One that denies takes none.
    #[must_use]
    pub fn dialects(&self) -> BTreeSet<Dialect> {
        let serving = self.pods.iter().filter(|policy| policy.deny().is_none());
        serving.flat_map(|policy| &policy.spec().dialects).copied().collect()
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
    /// What the GPUs of kerf's own nodes may be used for, if the policy is for them.
    #[must_use]
    pub fn managed(&self) -> Option<&NodePolicy> {
        match &self.rule {
            NodeRule::Managed(policy) => Some(policy),
            NodeRule::Plugin(_) => None,
        }
    }

    /// The layout, if the policy is for nodes that NVIDIA's device plugin serves.
    #[must_use]
    pub fn layout(&self) -> Option<&PluginLayout> {
        match &self.rule {
            NodeRule::Managed(_) => None,
            NodeRule::Plugin(layout) => Some(layout),
        }
    }

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
        self.layout().is_some() == other.layout().is_some()
            && covers(&self.names, &other.names)
            && has_all(&self.labels, &other.labels)
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
