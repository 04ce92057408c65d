//! Which kinds of slice may serve a request: admins' policies, what the cluster can cut, and the choice between them.

mod choose;
mod document;
mod document_check;
mod document_fault;
mod document_field;
mod document_names;
mod matching;
mod node_document;
mod plugin_document;
mod quota;
mod rules;
#[cfg(feature = "schema")]
pub mod schema;
mod set;
mod set_findings;
mod signature;
mod supply;
mod waited;

pub use choose::{Choice, Denied, Warning, choose, verify};
pub use document::{Metadata, Policy, PolicyDocument, PolicySpec, Toleration};
pub use document_fault::{PolicyError, PolicyFault};
pub use document_field::{Field, Step};
pub use matching::{Mismatch, PodFacts, PodMatch};
pub use node_document::{NodeMatch, NodePolicyDocument, NodePolicySpec};
pub use plugin_document::{MpsDocument, PluginDocument, TimeSlicingDocument};
pub use quota::{Charge, OverQuota, depends_on_place};
pub use rules::{
    Cap, DEFAULT_SIDECARS, Dialect, EnvironmentRule, NodeNameRule, PreemptionRule, SizeRule, WaitedLong,
    WaitingRule,
};
pub use set::{NodeRule, NodeRules, Policies};
pub use set_findings::{Finding, PolicyIndex, SetFault, Weight};
pub use supply::{Asked, Room, Several, Supply, SupplyIndex};
pub use waited::{Alternative, alternative};
