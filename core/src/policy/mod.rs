//! Chooses which kinds of slice may serve a request, by the admins' policies and by what the cluster's GPUs can serve.

mod bounds;
mod choose;
mod document;
mod document_check;
mod document_fault;
mod document_field;
mod document_names;
mod extends;
mod matching;
mod namespace_selector;
mod node_document;
mod plugin_document;
mod rules;
#[cfg(feature = "schema")]
pub mod schema;
mod set;
mod set_findings;
mod signature;
mod supply;

pub use choose::{Choice, Denied, Warning, choose};
pub use document::{Metadata, Policy, PolicyDocument, PolicySpec, Toleration};
pub use document_fault::{PolicyError, PolicyFault};
pub use document_field::{Field, Step};
pub use extends::{Lineage, PolicyDraft};
pub use matching::{Mismatch, PodMatch};
pub use namespace_selector::{LabelExpression, LabelOperator, NamespaceSelector};
pub use node_document::{NodePolicyDocument, NodePolicySpec};
pub use plugin_document::{MpsDocument, PluginDocument, TimeSlicingDocument};
pub use rules::{
    EnvironmentRule, MpsPodRule, NodeNameRule, PreemptionRule, RootContainers, SizeRule, WaitedLong,
    WaitingRule,
};
pub use set::{NodeRule, NodeRules, Policies, Undecided};
pub use set_findings::{Finding, PolicyIndex, SetFault, Weight};
pub use supply::{MappedNames, Supply, SupplyIndex};
