//! The nodes that a pod may be on by its own `nodeName`, `nodeSelector` and required node affinity, with
//! kube-scheduler's rules (k8s.io/component-helpers, `scheduling/corev1/nodeaffinity`).

use super::SpecView;
use serde::Deserialize;
use std::collections::BTreeMap;

/// One label of a node, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeLabel<'l> {
    /// The label has this value.
    Is(&'l str),
    /// The node has no such label.
    Missing,
    /// The label is not stored, so every requirement on it counts as met.
    Unknown,
}

/// The nodes that a pod may be on. The default selects all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSelection {
    name: Option<String>,
    labels: BTreeMap<String, String>,
    /// Alternative terms. `None` means no affinity, which selects all nodes; an empty list selects none.
    terms: Option<Vec<NodeTerm>>,
}

/// `spec.affinity` of a Pod, of which only the required node affinity is read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityView {
    node_affinity: Option<NodeAffinityView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinityView {
    required_during_scheduling_ignored_during_execution: Option<NodeSelectorView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelectorView {
    node_selector_terms: Option<Vec<NodeTerm>>,
}

/// One term of a node affinity; a node must meet all of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeTerm {
    match_expressions: Option<Vec<NodeRequirement>>,
    match_fields: Option<Vec<NodeRequirement>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeRequirement {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

/// The only field that Kubernetes lets a term select by.
const NAME_FIELD: &str = "metadata.name";

impl NodeSelection {
    /// The selection that a pod's spec makes.
    #[must_use]
    pub fn from_spec(spec: &SpecView) -> Self {
        let name = spec.node_name.clone().filter(|name| !name.is_empty());
        Self { name, ..Self::from_template(&spec.node_selector, spec.affinity.as_ref()) }
    }

    /// The selection that a controller's pod template makes. A running pod's `nodeName` is left out, because its
    /// successor may go elsewhere.
    #[must_use]
    pub fn from_template(selector: &BTreeMap<String, String>, affinity: Option<&AffinityView>) -> Self {
        let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let required = affinity
            .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
        let terms = required.map(|required| required.node_selector_terms.clone().unwrap_or_default());
        Self { name: None, labels: selector.clone(), terms }
    }

    /// The same selection, where a node must also have these labels.
    #[must_use]
    pub fn with_labels(mut self, labels: &BTreeMap<String, String>) -> Self {
        self.labels.extend(labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        self
    }

    /// Whether the pod may be on every node.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.name.is_none() && self.labels.is_empty() && self.terms.is_none()
    }

    /// Whether the pod may be on the node `name`; `label` returns what is known about a label of the node.
    pub fn selects<'l>(&self, name: &str, label: impl Fn(&str) -> NodeLabel<'l>) -> bool {
        let has = |(key, value): (&String, &String)| match label(key) {
            NodeLabel::Is(found) => found == value,
            NodeLabel::Missing => false,
            NodeLabel::Unknown => true,
        };
        self.name.as_ref().is_none_or(|wanted| wanted == name)
            && self.labels.iter().all(has)
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(name, &label)))
    }
}

impl NodeTerm {
    /// Whether a node meets the whole term. A term without requirements matches no node, as in Kubernetes.
    fn matches<'l>(&self, name: &str, label: impl Fn(&str) -> NodeLabel<'l>) -> bool {
        let (expressions, fields) =
            (self.match_expressions.as_deref().unwrap_or(&[]), self.match_fields.as_deref().unwrap_or(&[]));
        !(expressions.is_empty() && fields.is_empty())
            && expressions.iter().all(|expression| expression.is_met_by(label(&expression.key)))
            && fields.iter().all(|field| field.is_met_by_name(name))
    }
}

impl NodeRequirement {
    fn values(&self) -> &[String] {
        self.values.as_deref().unwrap_or(&[])
    }

    /// Whether a label meets the requirement. No node meets a requirement that cannot be read.
    fn is_met_by(&self, label: NodeLabel) -> bool {
        let value = match label {
            NodeLabel::Unknown => return true,
            NodeLabel::Is(value) => Some(value),
            NodeLabel::Missing => None,
        };
        let is_listed = || value.is_some_and(|value| self.values().iter().any(|listed| listed == value));
        let some = !self.values().is_empty();
        let number = |text: &str| text.parse::<i64>().ok();
        let compared = || match self.values() {
            [bound] => Some(number(value?)?.cmp(&number(bound)?)),
            _ => None,
        };
        match self.operator.as_str() {
            "In" => is_listed(),
            "NotIn" => some && !is_listed(),
            "Exists" => !some && value.is_some(),
            "DoesNotExist" => !some && value.is_none(),
            "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
            "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
            _ => false,
        }
    }

    /// Whether a node's name meets the requirement. A field takes exactly one value, and `metadata.name` is the only
    /// field of a Node.
    fn is_met_by_name(&self, name: &str) -> bool {
        let found = if self.key == NAME_FIELD { name } else { "" };
        match (self.operator.as_str(), self.values()) {
            ("In", [wanted]) => wanted == found,
            ("NotIn", [unwanted]) => unwanted != found,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Whether a pod with this spec may be on node `n`, in zone `a`, with eight GPUs.
    fn selects(spec: Value) -> bool {
        let label = |key: &str| match key {
            "zone" => NodeLabel::Is("a"),
            "gpus" => NodeLabel::Is("8"),
            "unknown" => NodeLabel::Unknown,
            _ => NodeLabel::Missing,
        };
        NodeSelection::from_spec(&serde_json::from_value(spec).unwrap()).selects("n", label)
    }

    fn by_terms(terms: Value) -> bool {
        let required = json!({"nodeSelectorTerms": terms});
        selects(
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}),
        )
    }

    #[test]
    fn expressions_are_read_as_the_scheduler_reads_them() {
        for (key, operator, values, expected) in [
            ("zone", "In", json!(["a", "b"]), true),
            ("zone", "In", json!(["b"]), false),
            ("other", "In", json!(["a"]), false),
            ("zone", "NotIn", json!(["a"]), false),
            ("zone", "NotIn", json!(["b"]), true),
            ("other", "NotIn", json!(["a"]), true),
            ("zone", "NotIn", json!([]), false),
            ("zone", "Exists", json!(null), true),
            ("other", "Exists", json!(null), false),
            ("zone", "Exists", json!(["a"]), false),
            ("zone", "DoesNotExist", json!(null), false),
            ("other", "DoesNotExist", json!(null), true),
            ("gpus", "Gt", json!(["7"]), true),
            ("gpus", "Gt", json!(["8"]), false),
            ("gpus", "Lt", json!(["9"]), true),
            ("gpus", "Lt", json!(["9", "10"]), false),
            ("zone", "Gt", json!(["7"]), false),
            ("gpus", "Gt", json!(["many"]), false),
            ("other", "Lt", json!(["9"]), false),
            ("zone", "Is", json!(["a"]), false),
            ("unknown", "DoesNotExist", json!(null), true),
            ("unknown", "Exists", json!(null), true),
        ] {
            let found = by_terms(
                json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]),
            );
            assert_eq!(found, expected, "{key} {operator} {values}");
        }
    }

    #[test]
    fn terms_are_alternatives_and_all_parts_of_a_term_must_hold() {
        let zone = |values: Value| json!({"key": "zone", "operator": "In", "values": values});
        let name = |operator: &str, values: Value| json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": values}]});
        let both = |a: Value, b: Value| json!({"matchExpressions": [a, b]});
        for (terms, expected) in [
            (json!([both(zone(json!(["b"])), zone(json!(["a"])))]), false),
            (
                json!([{"matchExpressions": [zone(json!(["b"]))]}, {"matchExpressions": [zone(json!(["a"]))]}]),
                true,
            ),
            (json!([{}]), false),
            (json!([]), false),
            (json!(null), false),
            (json!([{}, {"matchExpressions": [zone(json!(["a"]))]}]), true),
            (json!([name("In", json!(["n"]))]), true),
            (json!([name("In", json!(["m"]))]), false),
            (json!([name("NotIn", json!(["m"]))]), true),
            (json!([name("In", json!(["m", "n"]))]), false),
        ] {
            assert_eq!(by_terms(terms.clone()), expected, "{terms}");
        }
    }

    #[test]
    fn a_node_must_meet_selector_name_and_affinity() {
        for (spec, expected) in [
            (json!({}), true),
            (json!({"nodeSelector": null, "affinity": null}), true),
            (
                json!({"affinity": {"podAffinity": {}, "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}),
                true,
            ),
            (json!({"nodeSelector": {"zone": "a", "gpus": "8"}}), true),
            (json!({"nodeSelector": {"zone": "a", "gpus": "4"}}), false),
            (json!({"nodeSelector": {"other": "a"}}), false),
            (json!({"nodeSelector": {"unknown": "a"}}), true),
            (json!({"nodeName": "n"}), true),
            (json!({"nodeName": "m"}), false),
            (json!({"nodeName": ""}), true),
        ] {
            assert_eq!(selects(spec.clone()), expected, "{spec}");
        }
    }
}
