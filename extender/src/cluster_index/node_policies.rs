//! Finds nodes whose policies differ from the admins' documents.

use super::managed_nodes::ManagedNodes;
use super::node_objects::NodeObjects;
use super::quotas::Quotas;
use kerf_core::contract::NodePolicy;
use kerf_core::names::NodeName;
use kerf_core::policy::NodeRules;

/// What decides the policies of nodes.
#[derive(Debug)]
pub struct NodePolicies<'i> {
    pub(super) managed: &'i ManagedNodes,
    pub(super) objects: &'i NodeObjects,
    pub(super) quotas: &'i Quotas,
}

impl<'i> NodePolicies<'i> {
    /// The document for a node. `Err` while its labels are not known, because any document may match it.
    pub fn rules_of(&self, name: &NodeName) -> Result<Option<&'i NodeRules>, UnknownNode> {
        let labels = self.objects.labels(name).ok_or(UnknownNode)?;
        Ok(self.quotas.policies().for_node(name, labels))
    }

    /// The nodes whose policy differs from the documents.
    #[must_use]
    pub fn unfilled_nodes(&self) -> Vec<NodeName> {
        let unfilled = self.managed.iter().filter(|(name, node)| {
            let (Some(policy), Ok(rules)) = (&node.written().policy, self.rules_of(name)) else {
                return false;
            };
            is_due(node.written().filled_by.as_deref(), policy, rules)
        });
        unfilled.map(|(name, _)| name.clone()).collect()
    }
}

/// The Node's labels are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownNode;

/// Whether a GpuNode with this policy, which the document `filled_by` filled, has to change. If no document is for it,
/// what an admin wrote into it stays.
#[must_use]
pub fn is_due(filled_by: Option<&str>, policy: &NodePolicy, rules: Option<&NodeRules>) -> bool {
    match rules {
        Some(rules) => filled_by != Some(rules.name.as_str()) || Some(policy) != rules.managed(),
        None => filled_by.is_some(),
    }
}
