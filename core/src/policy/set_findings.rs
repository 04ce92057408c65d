//! Findings between the policies of a set. Each policy is valid by itself.

use super::choose::may_serve;
use super::document_field::Field;
use super::{NodeRules, Policies, Policy};
use crate::kind::IsolationClass;
use crate::mig::catalog;
use crate::request::Dialect;
use crate::units::SizeGb;
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// The place of a policy in [`Policies`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyIndex {
    /// Index in the list of policies for pods.
    Pod(usize),
    /// Index in the list of policies for nodes.
    Node(usize),
}

/// A finding about one policy of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The policy that the finding is about.
    pub policy: PolicyIndex,
    /// The path of the field in this policy.
    pub field: Field,
    /// The fault of this field.
    pub fault: SetFault,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.fault)
    }
}

/// The severity of a finding, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The policies can be in force; `kerf policy check` warns.
    Warning,
    /// The policies can be in force, but `kerf policy check` fails.
    CheckFails,
    /// The two policies cannot be in force together.
    Refused,
}

/// The faults that policies of a set can have together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SetFault {
    /// Two policies of one kind have the same name.
    #[error("another policy is called {0}; names stand in messages and records, give each its own")]
    SameName(String),
    /// Two policies state packing weights, which hold for the whole cluster.
    #[error("policy {0} states weights too, and they hold for the whole cluster; state them once")]
    SecondWeights(String),
    /// An earlier policy matches all pods or nodes of this one.
    #[error(
        "policy {0} is tried before and matches everything that this one matches, so this one is never used; put it before that one or remove it"
    )]
    NeverReached(String),
    /// A GPU model is not in kerf's catalog.
    #[error("{0:?} is in no catalog of kerf's; the names are those of `kerf gpu list`, as in H100-80GB")]
    UnknownModel(String),
    /// The list of dialects does not include `mig`.
    #[error(
        "without mig, kerf ignores limits like nvidia.com/mig-1g.10gb, and on managed nodes such pods take slices outside the policy; add mig, unless NVIDIA's device plugin serves all nodes"
    )]
    WithoutMig,
    /// The kinds of a class cannot serve even the smallest size.
    #[error(
        "none of these kinds can have {0}, the smallest size that the policy allows, on any model that it allows; add a kind, allow smaller sizes, or remove the class"
    )]
    NoSizeFits(SizeGb),
    /// A deprecated field of an earlier version is set.
    #[error(
        "this field has no meaning any more and will be refused by the next version: a pod that waits takes whichever kind of its class is free first; remove it"
    )]
    Waiting,
}

impl SetFault {
    /// How severe the finding is.
    #[must_use]
    pub fn weight(&self) -> Weight {
        match self {
            Self::SameName(_) | Self::SecondWeights(_) => Weight::Refused,
            Self::NeverReached(_) | Self::NoSizeFits(_) => Weight::CheckFails,
            Self::UnknownModel(_) | Self::WithoutMig | Self::Waiting => Weight::Warning,
        }
    }
}

impl Policies {
    /// All findings about these policies except conflicts, in the order of the policies.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let pods = self.pods.iter().enumerate().flat_map(|(index, _)| pod_findings(&self.pods, index));
        let nodes = self.nodes.iter().enumerate().flat_map(|(index, _)| node_findings(&self.nodes, index));
        pods.chain(nodes).collect()
    }

    /// The findings for which these policies cannot be in force together.
    #[must_use]
    pub fn conflicts(&self) -> Vec<Finding> {
        let mut conflicts = same_names(self);
        conflicts.extend(second_weights(&self.pods));
        conflicts
    }
}

fn same_names(policies: &Policies) -> Vec<Finding> {
    let mut conflicts = Vec::new();
    let pods = policies.pods.iter().map(Policy::name).enumerate();
    let nodes = policies.nodes.iter().map(|rules| rules.name.as_str()).enumerate();
    conflicts.extend(repeated(pods, PolicyIndex::Pod));
    conflicts.extend(repeated(nodes, PolicyIndex::Node));
    conflicts
}

fn repeated<'p>(
    names: impl Iterator<Item = (usize, &'p str)>,
    policy: impl Fn(usize) -> PolicyIndex,
) -> Vec<Finding> {
    let mut first = BTreeMap::new();
    let again = names.filter(|(index, name)| *first.entry(*name).or_insert(*index) != *index);
    let found = |(index, name): (usize, &str)| Finding {
        policy: policy(index),
        field: Field::from_dotted("metadata.name"),
        fault: SetFault::SameName(name.to_owned()),
    };
    again.map(found).collect()
}

fn second_weights(pods: &[Policy]) -> Vec<Finding> {
    let mut stating = pods.iter().enumerate().filter(|(_, policy)| !policy.weights().is_empty());
    let Some((_, first)) = stating.next() else { return Vec::new() };
    let found = |(index, _)| Finding {
        policy: PolicyIndex::Pod(index),
        field: Field::from_dotted("spec.packing.weights"),
        fault: SetFault::SecondWeights(first.name().to_owned()),
    };
    stating.map(found).collect()
}

fn pod_findings(pods: &[Policy], index: usize) -> Vec<Finding> {
    let policy = PolicyIndex::Pod(index);
    let matched = &pods[index].spec().pods;
    // A policy that others extend is in use by them, so it may come after one that matches all its pods.
    let is_base =
        pods.iter().any(|other| other.lineage().bases.iter().any(|base| base == pods[index].name()));
    let before = pods[..index].iter().find(|before| !is_base && before.spec().pods.covers(matched));
    let mut findings: Vec<Finding> = before.map(|b| never_reached(policy, b.name())).into_iter().collect();
    findings.extend(unknown_models(policy, &Field::from_dotted("spec.match.models"), &matched.models));
    let spec = pods[index].spec();
    findings.extend(unknown_models(policy, &Field::from_dotted("spec.models"), &spec.models));
    // A model of `kindsByModel` that `models` lists too was reported there already.
    let unlisted = spec.kinds_by_model.keys().filter(|model| !spec.models.contains(model));
    for model in unlisted.filter(|model| catalog::by_name(model).is_none()) {
        let (field, fault) =
            (Field::from_dotted("spec.kindsByModel").key(model), SetFault::UnknownModel(model.clone()));
        findings.push(Finding { policy, field, fault });
    }
    let takes_mig = pods[index].spec().dialects.contains(&Dialect::Mig);
    let without_mig =
        Finding { policy, field: Field::from_dotted("spec.dialects"), fault: SetFault::WithoutMig };
    findings.extend((!takes_mig).then_some(without_mig));
    findings.extend(no_size_fits(policy, &pods[index]));
    let waiting = Finding { policy, field: Field::from_dotted("spec.waiting"), fault: SetFault::Waiting };
    findings.extend(spec.waiting.as_ref().map(|_| waiting));
    findings
}

/// The classes whose kinds serve no size that the policy allows.
fn no_size_fits(index: PolicyIndex, policy: &Policy) -> Vec<Finding> {
    let spec = policy.spec();
    let smallest = spec.sizes.min_gb.unwrap_or(SizeGb(1));
    let idle = spec.isolation.iter().filter(|(_, kinds)| !may_serve(policy, kinds, smallest));
    let found = |class: &IsolationClass| Finding {
        policy: index,
        field: Field::from_dotted("spec.isolation").key(class.to_string()),
        fault: SetFault::NoSizeFits(smallest),
    };
    idle.map(|(class, _)| found(class)).collect()
}

fn node_findings(nodes: &[NodeRules], index: usize) -> Vec<Finding> {
    let policy = PolicyIndex::Node(index);
    let rules = &nodes[index];
    let before = nodes[..index].iter().find(|before| before.covers(rules));
    let mut findings: Vec<Finding> = before.map(|b| never_reached(policy, &b.name)).into_iter().collect();
    for (number, rule) in rules.managed().into_iter().flat_map(|policy| &policy.gpus).enumerate() {
        let field = Field::from_dotted("spec.gpus").item(number).key("select").key("models");
        findings.extend(unknown_models(policy, &field, &rule.select.models));
    }
    findings
}

fn never_reached(policy: PolicyIndex, before: &str) -> Finding {
    Finding {
        policy,
        field: Field::from_dotted("spec.match"),
        fault: SetFault::NeverReached(before.to_owned()),
    }
}

fn unknown_models(policy: PolicyIndex, field: &Field, models: &[String]) -> Vec<Finding> {
    let unknown = models.iter().enumerate().filter(|(_, model)| catalog::by_name(model).is_none());
    let found = |(number, model): (usize, &String)| Finding {
        policy,
        field: field.item(number),
        fault: SetFault::UnknownModel(model.clone()),
    };
    unknown.map(found).collect()
}
