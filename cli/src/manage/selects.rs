//! Whether the pods of a `DaemonSet` may run on a node, by its node selector and its required node affinity. Taints do
//! not count. Pure.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use std::collections::BTreeMap;

pub(super) type Labels = BTreeMap<String, String>;

pub(super) fn selects(spec: &PodSpec, name: &str, labels: &Labels) -> bool {
    let wanted = spec.node_selector.iter().flatten();
    let has_labels = wanted.into_iter().all(|(key, value)| labels.get(key) == Some(value));
    let terms = required_terms(spec);
    has_labels && terms.is_none_or(|terms| terms.iter().any(|term| meets(term, name, labels)))
}

/// The terms of the required node affinity. They are alternatives: a node needs to meet only one.
pub(super) fn required_terms(spec: &PodSpec) -> Option<&[NodeSelectorTerm]> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    Some(&required.node_selector_terms)
}

/// As in kube-scheduler, a term without requirements selects no node.
fn meets(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let of_name = |field: &NodeSelectorRequirement| is_met(field, Some(name));
    let of_label = |expression: &NodeSelectorRequirement| {
        is_met(expression, labels.get(&expression.key).map(String::as_str))
    };
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(of_label)
        && fields.iter().all(of_name)
}

/// Whether a value meets a requirement. No value meets an unknown operator.
fn is_met(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = || value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let number = |text: Option<&str>| text?.parse::<i64>().ok();
    let ordering = || number(value)?.partial_cmp(&number(values.first().map(String::as_str))?);
    match requirement.operator.as_str() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => ordering().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => ordering().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn is_selected(spec: &Value) -> bool {
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        let labels = [("pool", "gpu"), ("count", "8")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        selects(&serde_json::from_value(spec).unwrap(), "n1", &labels.into())
    }

    fn terms(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": terms,
        }}}})
    }

    fn is_met(key: &str, operator: &str, values: &[&str]) -> bool {
        let expression = json!({"key": key, "operator": operator, "values": values});
        is_selected(&terms(&json!([{"matchExpressions": [expression]}])))
    }

    #[test]
    fn each_operator_selects_as_in_kube_scheduler() {
        for (key, operator, values, expected) in [
            ("pool", "In", &["cpu", "gpu"][..], true),
            ("pool", "In", &["cpu"], false),
            ("zone", "In", &["a"], false),
            ("pool", "NotIn", &["gpu"], false),
            ("zone", "NotIn", &["a"], true),
            ("pool", "Exists", &[], true),
            ("zone", "Exists", &[], false),
            ("zone", "DoesNotExist", &[], true),
            ("pool", "DoesNotExist", &[], false),
            ("count", "Gt", &["7"], true),
            ("count", "Gt", &["8"], false),
            ("count", "Lt", &["9"], true),
            ("pool", "Lt", &["9"], false),
            ("pool", "Resembles", &["gpu"], false),
        ] {
            assert_eq!(is_met(key, operator, values), expected, "{key} {operator} {values:?}");
        }
    }

    #[test]
    fn one_term_is_enough_and_all_of_a_term_is_needed() {
        let pool = |value: &str| json!({"key": "pool", "operator": "In", "values": [value]});
        let name = |value: &str| json!({"key": "metadata.name", "operator": "In", "values": [value]});
        for (spec, expected) in [
            (json!({}), true),
            (json!({"nodeSelector": {"pool": "gpu"}}), true),
            (json!({"nodeSelector": {"pool": "gpu", "zone": "a"}}), false),
            (terms(&json!([{"matchExpressions": [pool("cpu")]}, {"matchExpressions": [pool("gpu")]}])), true),
            (terms(&json!([{"matchExpressions": [pool("gpu"), pool("cpu")]}])), false),
            (terms(&json!([{"matchFields": [name("n1")]}])), true),
            (terms(&json!([{"matchFields": [name("n2")], "matchExpressions": [pool("gpu")]}])), false),
            (terms(&json!([{}])), false),
            (terms(&json!([])), false),
        ] {
            assert_eq!(is_selected(&spec), expected, "{spec}");
        }
    }
}
