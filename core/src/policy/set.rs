//! All policies in force: for pods, where the first match holds, and for nodes.

use super::Policy;
use super::matching::Mismatch;
use super::signature::Signature;
use crate::contract::NodePolicy;
use crate::mig::Profile;
use crate::names::NodeName;
use crate::plugin_layout::{LayoutPolicy, PluginLayout};
use crate::request::{Dialect, PodFacts};
use crate::selector::{Labels, NodeMatch};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// The policies in force, in the order of their files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policies {
    /// The policies for pods; the first that matches a pod holds.
    pub pods: Vec<Policy>,
    /// The policies for nodes; the first that matches a node holds.
    pub nodes: Vec<NodeRules>,
}

/// The policy of a pod cannot be decided, because it depends on labels of its namespace that are not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "policy {policy} selects namespaces by label, and kerf has not seen the labels of namespace {namespace} yet; create the pod again in a moment"
)]
pub struct Undecided {
    /// Name of the policy that selects by namespace labels.
    pub policy: String,
    /// Name of the pod's namespace.
    pub namespace: String,
}

/// A policy for the nodes that it selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRules {
    /// The policy's `metadata.name`, unique among policies for nodes.
    pub name: String,
    /// The nodes that the policy selects.
    pub nodes: NodeMatch,
    /// The rule for the nodes that the policy selects.
    pub rule: NodeRule,
}

/// The rule of a policy for nodes. It is for managed nodes or for nodes that NVIDIA's device plugin serves, never for
/// both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRule {
    /// The policy for the GPUs of managed nodes.
    Managed(NodePolicy),
    /// The layout of GPUs that NVIDIA's device plugin serves.
    Plugin(PluginLayout),
}

impl Policies {
    /// The policy for a pod: the first that matches it. `None` if none matches; then the pod may ask for no GPU.
    ///
    /// If the namespace's labels are not known, a policy that selects by them matches no pod; see
    /// [`decided`](Self::decided).
    #[must_use]
    pub fn for_pod(&self, pod: &PodFacts) -> Option<&Policy> {
        self.likely(pod).find(|policy| policy.spec().pods.is_for(pod))
    }

    /// The policy for a pod, for callers that must not apply a wrong one. It fails if the namespace's labels are
    /// not known, and the first policy that matches otherwise selects by them.
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

    /// Whether some policy selects by labels of namespaces. Only then does the webhook watch Namespaces.
    #[must_use]
    pub fn read_namespace_labels(&self) -> bool {
        self.pods.iter().any(|policy| policy.spec().pods.reads_namespace_labels())
    }

    /// The policies that may match the pod by their signatures.
    fn likely(&self, pod: &PodFacts) -> impl Iterator<Item = &Policy> {
        let signature = Signature::from_pod(pod);
        self.pods.iter().filter(move |policy| policy.signature().may_be_for(signature))
    }

    /// The GPU models that the policies name, possibly with repetitions.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let specs = self.pods.iter().map(Policy::spec);
        let of_pods = specs
            .flat_map(|spec| spec.pods.models.iter().chain(&spec.models).chain(spec.kinds_by_model.keys()));
        let rules = self.nodes.iter().filter_map(NodeRules::managed).flat_map(|policy| &policy.gpus);
        of_pods.chain(rules.flat_map(|rule| &rule.select.models)).map(String::as_str)
    }

    /// The policies that were tried before the one that holds, each with the condition that the pod does not meet. All
    /// policies if none holds.
    #[must_use]
    pub fn passed<'p>(&'p self, pod: &'p PodFacts) -> Vec<(&'p Policy, Mismatch<'p>)> {
        let tried = self.pods.iter().map(|policy| Some((policy, policy.spec().pods.mismatch(pod)?)));
        tried.map_while(|tried| tried).collect()
    }

    /// The policy for a managed node: the first that selects it.
    #[must_use]
    pub fn for_node(&self, name: &NodeName, labels: &impl Labels) -> Option<&NodeRules> {
        let mut managed = self.nodes.iter().filter(|rules| rules.managed().is_some());
        managed.find(|rules| rules.nodes.is_for(name, labels))
    }

    /// The layouts of the policies for nodes that NVIDIA's device plugin serves, in the policies' order.
    pub fn layouts(&self) -> impl Iterator<Item = LayoutPolicy<'_>> {
        self.nodes.iter().filter_map(|rules| {
            Some(LayoutPolicy { name: &rules.name, layout: rules.layout()?, nodes: &rules.nodes })
        })
    }

    /// The dialects that some policy accepts. A policy with `deny` accepts none.
    #[must_use]
    pub fn dialects(&self) -> BTreeSet<Dialect> {
        let serving = self.pods.iter().filter(|policy| policy.deny().is_none());
        serving.flat_map(|policy| &policy.spec().dialects).copied().collect()
    }

    /// The weight of free capacity for each MIG profile, in percent of profiles that are not listed. The first policy
    /// that states weights holds for the cluster.
    #[must_use]
    pub fn weights(&self) -> BTreeMap<Profile, u32> {
        let mut weights = self.pods.iter().map(Policy::weights).filter(|weights| !weights.is_empty());
        weights.next().cloned().unwrap_or_default()
    }
}

impl NodeRules {
    /// The rule for managed nodes; `None` if the policy is for static nodes.
    #[must_use]
    pub fn managed(&self) -> Option<&NodePolicy> {
        match &self.rule {
            NodeRule::Managed(policy) => Some(policy),
            NodeRule::Plugin(_) => None,
        }
    }

    /// The layout for NVIDIA's device plugin; `None` if the policy is for managed nodes.
    #[must_use]
    pub fn layout(&self) -> Option<&PluginLayout> {
        match &self.rule {
            NodeRule::Managed(_) => None,
            NodeRule::Plugin(layout) => Some(layout),
        }
    }

    /// Whether the policy selects every node that `other` selects.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.layout().is_some() == other.layout().is_some() && self.nodes.covers(&other.nodes)
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
