//! The policy for nodes as admins write it, and the checked rules made of it.

use super::Metadata;
use super::document_check::head;
use super::document_fault::{PolicyError, PolicyFault};
use super::document_field::Field;
use super::document_names::{labels, name, patterns, twice};
use super::plugin_document::PluginDocument;
use super::set::{NodeRule, NodeRules};
use crate::contract::{GpuRule, GpuSelector, NodePolicy, OverUse, SliceLength, WarmSlices};
use crate::kind::Kind;
use crate::plugin_layout::{DEFAULT_KEY, LAYOUT_NAME_LENGTH_LIMIT};
use crate::resource::{ResourceName, SHARE_SIZES};
use crate::selector::NodeMatch;
use serde::{Deserialize, Serialize};

/// A policy for nodes. Unknown fields are errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodePolicyDocument {
    /// `kerf.dev/v1alpha1`.
    #[cfg_attr(feature = "schema", schemars(schema_with = "super::schema::api_version"))]
    pub api_version: String,
    /// `GpuNodePolicy`.
    #[cfg_attr(feature = "schema", schemars(schema_with = "super::schema::node_kind"))]
    pub kind: String,
    /// The metadata, with the policy's name.
    pub metadata: Metadata,
    /// The fields of the policy.
    pub spec: NodePolicySpec,
}

/// `spec` of a policy for nodes: which nodes, and the fields of [`NodePolicy`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodePolicySpec {
    /// The nodes that the policy is for; all nodes if it is absent. The first policy that matches a node holds for it.
    #[serde(rename = "match", skip_serializing_if = "NodeMatch::is_all")]
    pub nodes: NodeMatch,
    /// Rules for GPUs. The first one that selects a GPU holds for it; otherwise the default rule does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuRule>,
    /// Idle slices that the agent cuts ahead of demand.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm: Vec<WarmSlices>,
    /// What the agent does with a pod that uses more GPU memory than it was given.
    pub over_use: OverUse,
    /// Whether the agent removes pods of the nodes that failed with `UnexpectedAdmissionError`.
    pub remove_rejected_pods: bool,
    /// The layout of nodes that NVIDIA's device plugin serves. A policy with it is for these nodes only, and has none of the
    /// fields above except `match`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<PluginDocument>,
}

impl NodePolicyDocument {
    /// All mistakes of the document; empty if it makes rules.
    #[must_use]
    pub fn problems(&self) -> Vec<PolicyError> {
        let Self { api_version, kind, metadata, spec } = self;
        let mut errors = head(api_version, kind, "GpuNodePolicy");
        errors.extend(name(&Field::from_dotted("metadata.name"), &metadata.name));
        errors.extend(patterns(&Field::from_dotted("spec.match.names"), &spec.nodes.names));
        errors.extend(labels(&Field::from_dotted("spec.match.labels"), &spec.nodes.labels));
        for (index, rule) in spec.gpus.iter().enumerate() {
            errors.extend(rule_problems(&Field::from_dotted("spec.gpus").item(index), rule));
        }
        errors.extend(never_used(&spec.gpus));
        for (index, warm) in spec.warm.iter().enumerate() {
            errors.extend(warm_problems(&Field::from_dotted("spec.warm").item(index), warm, &spec.gpus));
        }
        if let Some(plugin) = &spec.plugin {
            errors.extend(beside_plugin(spec));
            errors.extend(layout_name(&metadata.name));
            errors.extend(plugin.problems(&Field::from_dotted("spec.plugin")));
        }
        let resources: Vec<_> = spec.warm.iter().map(|warm| warm.resource).collect();
        errors.extend(twice(&Field::from_dotted("spec.warm"), &resources));
        errors
    }
}

impl TryFrom<NodePolicyDocument> for NodeRules {
    type Error = PolicyError;

    /// Fails with the first of the document's problems.
    fn try_from(document: NodePolicyDocument) -> Result<Self, PolicyError> {
        if let Some(error) = document.problems().into_iter().next() {
            return Err(error);
        }
        let NodePolicySpec { nodes, gpus, warm, over_use, remove_rejected_pods, plugin } = document.spec;
        let rule = match plugin {
            Some(plugin) => NodeRule::Plugin(plugin.layout()?),
            None => NodeRule::Managed(NodePolicy { gpus, warm, over_use, remove_rejected_pods }),
        };
        Ok(Self { name: document.metadata.name, nodes, rule })
    }
}

/// The mistakes of fields for managed nodes that are set with a layout of NVIDIA's device plugin.
fn beside_plugin(spec: &NodePolicySpec) -> impl Iterator<Item = PolicyError> + use<> {
    [
        ("spec.gpus", !spec.gpus.is_empty()),
        ("spec.warm", !spec.warm.is_empty()),
        ("spec.overUse", spec.over_use != OverUse::default()),
        ("spec.removeRejectedPods", spec.remove_rejected_pods),
    ]
    .into_iter()
    .filter(|(_, is_set)| *is_set)
    .map(|(field, _)| PolicyFault::BesidePlugin.at_field(Field::from_dotted(field)))
}

/// The mistake of a name that cannot be a node's label, or that NVIDIA's device plugin reserves.
fn layout_name(name: &str) -> Option<PolicyError> {
    let fault = if name == DEFAULT_KEY {
        PolicyFault::ReservedLayoutName
    } else if name.len() > LAYOUT_NAME_LENGTH_LIMIT {
        PolicyFault::LongLayoutName(name.to_owned())
    } else {
        return None;
    };
    Some(fault.at_field(Field::from_dotted("metadata.name")))
}

fn rule_problems(field: &Field, rule: &GpuRule) -> Vec<PolicyError> {
    let mut errors = Vec::new();
    // Only the cause is reported; otherwise each setting would count as being for a kind that is not listed.
    if rule.kinds.is_empty() {
        errors.push(PolicyFault::NoKindOfGpu.at_field(field.key("kinds")));
        return errors;
    }
    errors.extend(twice(&field.key("kinds"), &rule.kinds));
    errors.extend(select_problems(&field.key("select"), &rule.select));
    let (mps, slicing) = (field.key("mps"), field.key("timeSlicing"));
    let turns = field.key("mig").key("timeSlicing");
    for (is_set, kind, field) in [
        (rule.compute_instances, Kind::Mig, field.key("computeInstances")),
        (rule.mig.time_slicing.is_some(), Kind::Mig, turns.clone()),
        (rule.mps.strict, Kind::Mps, mps.key("strict")),
        (!rule.mps.exclusive, Kind::Mps, mps.key("exclusive")),
        (rule.mps.replicas.is_some(), Kind::Mps, mps.key("replicas")),
        (!rule.mps.limits_compute(), Kind::Mps, mps.key("computeLimit")),
        (rule.time_slicing.replicas.is_some(), Kind::TimeSlicing, slicing.key("replicas")),
        (rule.time_slicing.length != SliceLength::Default, Kind::TimeSlicing, slicing.key("length")),
        (rule.time_slicing.memory_limits, Kind::TimeSlicing, slicing.key("memoryLimits")),
    ] {
        if is_set && !rule.kinds.contains(&kind) {
            errors.push(PolicyFault::WithoutKind { kind }.at_field(field));
        }
    }
    if rule.compute_instances && rule.mig.time_slicing.is_some() {
        errors.push(PolicyFault::PartsAndTurns.at_field(turns));
    }
    if let Some(replicas) = rule.time_slicing.replicas.filter(|replicas| *replicas < 2) {
        errors.push(PolicyFault::Replicas(replicas).at_field(slicing.key("replicas")));
    }
    for (index, slices) in rule.layout.iter().enumerate() {
        errors.extend(no_share(slices.resource, || field.key("layout").item(index).key("resource")));
    }
    errors
}

fn select_problems(field: &Field, select: &GpuSelector) -> Vec<PolicyError> {
    let mut errors = Vec::new();
    if !select.indexes.is_empty() {
        errors.push(PolicyFault::Indexes.at_field(field.key("indexes")));
    }
    for (number, uuid) in select.uuids.iter().enumerate() {
        if !uuid.as_str().starts_with("GPU-") {
            errors.push(PolicyFault::NoUuid(uuid.clone()).at_field(field.key("uuids").item(number)));
        }
    }
    errors.extend(twice(&field.key("uuids"), &select.uuids));
    errors.extend(twice(&field.key("pciBusIds"), &select.pci_bus_ids));
    errors.extend(twice(&field.key("models"), &select.models));
    errors
}

/// The mistake of a share size that agents do not serve. The name is valid, so pods with it would be pending forever.
fn no_share(resource: ResourceName, field: impl FnOnce() -> Field) -> Option<PolicyError> {
    let (ResourceName::Mps(size) | ResourceName::TimeSlicing(size)) = resource else { return None };
    // If two sizes are equally near, the larger is suggested, because it holds what was meant.
    let nearest = SHARE_SIZES.into_iter().rev().min_by_key(|share| share.0.abs_diff(size.0))?;
    (nearest != size).then(|| PolicyFault::NoShare { size, nearest }.at_field(field()))
}

/// The mistake of the first rule behind one that selects every GPU.
fn never_used(rules: &[GpuRule]) -> Option<PolicyError> {
    let all = rules.iter().position(|rule| rule.select == GpuSelector::default())?;
    (all + 1 < rules.len())
        .then(|| PolicyFault::RuleNeverUsed(all).at_field(Field::from_dotted("spec.gpus").item(all + 1)))
}

fn warm_problems(field: &Field, warm: &WarmSlices, rules: &[GpuRule]) -> Vec<PolicyError> {
    let mut errors = Vec::new();
    if warm.count == 0 {
        errors.push(PolicyFault::NoWarm.at_field(field.key("count")));
    }
    errors.extend(no_share(warm.resource, || field.key("resource")));
    let resource = warm.resource;
    let Some(kind) = resource.kind() else { return errors };
    // A GPU that no rule selects allows every kind. Only a rule for all GPUs leaves no such GPU.
    let open = !rules.iter().any(|rule| rule.select == GpuSelector::default());
    if !open && !rules.iter().any(|rule| rule.kinds.contains(&kind)) {
        errors.push(PolicyFault::WarmKind { resource, kind }.at_field(field.key("resource")));
    }
    errors
}

#[cfg(test)]
#[path = "node_document_tests.rs"]
mod tests;
