//! Node affinity: only nodes that can ever serve the pod, so that the scheduler's sample is drawn from them. It uses
//! labels of the agents or of NVIDIA's programs, and a node's name only if the user named it. The user's terms stay,
//! and each of them gets kerf's expressions.

use crate::edit::Edit;
use kerf_core::admission::Fit;
use kerf_core::contract::RequestDocument;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::policy::Policies;
use kerf_core::static_node::label_expressions;
use kerf_core::units::SizeGb;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const TERMS: [&str; 5] = [
    "spec",
    "affinity",
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
];
const EXPRESSIONS: &str = "matchExpressions";
const FIELDS: &str = "matchFields";

const LONGEST_LABEL: usize = 63;

type Wanted = (&'static str, Value);

/// Restricts the pod to nodes that can serve `document`, and to the node that `fit` names, if it names one.
///
/// Terms are alternatives. If static nodes serve the pod as well, each of the user's terms becomes two, because managed
/// and static nodes have different labels.
pub(super) fn require(edit: &mut Edit, document: &RequestDocument, fit: &Fit) {
    let field =
        fit.node.as_ref().map(|node| json!({"key": "metadata.name", "operator": "In", "values": [node]}));
    let with_field = |expressions: Vec<Value>| -> Vec<Wanted> {
        let expressions = expressions.into_iter().map(|value| (EXPRESSIONS, value));
        expressions.chain(field.clone().map(|value| (FIELDS, value))).collect()
    };
    let sorts: Vec<Vec<Wanted>> = sorts(document).into_iter().map(with_field).collect();
    if edit.get(&TERMS).and_then(Value::as_array).is_none() {
        let terms: Vec<_> = sorts.into_iter().map(|wanted| term(json!({}), &wanted)).collect();
        return edit.set(&TERMS, json!(terms));
    }
    if let [wanted] = &sorts[..] {
        for index in selecting(edit) {
            for (list, value) in wanted {
                edit.include(&[&TERMS[..], &[&index, list]].concat(), value.clone());
            }
        }
        return;
    }
    let terms = edit.get(&TERMS).and_then(Value::as_array).cloned().unwrap_or_default();
    let selecting = selecting(edit);
    let split = |(index, given): (usize, Value)| -> Vec<Value> {
        let is_done = sorts.iter().any(|wanted| has_all(&given, wanted));
        if is_done || !selecting.contains(&index.to_string()) {
            return vec![given];
        }
        sorts.iter().map(|wanted| term(given.clone(), wanted)).collect()
    };
    let split: Vec<Value> = terms.into_iter().enumerate().flat_map(split).collect();
    edit.set(&TERMS, json!(split));
}

/// The label expressions of nodes that can serve `document`, for managed and for static nodes.
fn sorts(document: &RequestDocument) -> Vec<Vec<Value>> {
    let fixed = document.containers.iter().any(|container| container.resource.is_plugins());
    let managed = (!fixed).then(|| sizes(document).into_iter().chain(models(document)).collect());
    let is = |(key, value): (&String, &String)| json!({"key": key, "operator": "In", "values": [value]});
    let sorts = managed.into_iter().chain(label_expressions(document));
    sorts.map(|sort: Vec<Value>| sort.into_iter().chain(document.nodes.iter().map(is)).collect()).collect()
}

/// Removes what [`require`] has added for `document`, which is obsolete. Two terms that it has made of one become one
/// again.
///
/// The author of a pod can forge the document. So of its node labels only those of a policy count; otherwise a forged
/// document would remove what another webhook requires.
pub(super) fn withdraw(edit: &mut Edit, document: &RequestDocument, policies: &Policies) {
    let Some(terms) = edit.get(&TERMS).and_then(Value::as_array).cloned() else { return };
    let selectors = || policies.pods.iter().map(|policy| &policy.spec().node_selector);
    let mut document = document.clone();
    document.nodes.retain(|key, value| selectors().any(|selector| selector.get(key) == Some(value)));
    let sorts = sorts(&document);
    let mut left: Vec<Value> = Vec::new();
    for given in terms {
        let Some(sort) = sorts.iter().find(|sort| sort.iter().all(|wanted| has(&given, wanted))) else {
            left.push(given);
            continue;
        };
        let term = without(given, sort);
        if term != json!({}) && left.last() != Some(&term) {
            left.push(term);
        }
    }
    if left.is_empty() {
        edit.remove(&TERMS[..TERMS.len() - 1]);
    } else {
        edit.set(&TERMS, json!(left));
    }
}

fn has(term: &Value, expression: &Value) -> bool {
    term[EXPRESSIONS].as_array().is_some_and(|items| items.contains(expression))
}

fn without(mut term: Value, expressions: &[Value]) -> Value {
    let Some(members) = term.as_object_mut() else { return term };
    if let Some(items) = members.get_mut(EXPRESSIONS).and_then(Value::as_array_mut) {
        items.retain(|item| !expressions.contains(item));
        if items.is_empty() {
            members.remove(EXPRESSIONS);
        }
    }
    term
}

fn term(mut term: Value, wanted: &[Wanted]) -> Value {
    for (list, value) in wanted {
        let items = term[*list].as_array().cloned().unwrap_or_default();
        if !items.contains(value) {
            term[*list] = items.into_iter().chain([value.clone()]).collect();
        }
    }
    term
}

fn has_all(term: &Value, wanted: &[Wanted]) -> bool {
    wanted.iter().all(|(list, value)| term[*list].as_array().is_some_and(|items| items.contains(value)))
}

/// The indexes of terms that select nodes. A term without expressions is skipped: it matches no node, and with kerf's
/// expressions it would match some.
fn selecting(edit: &Edit) -> Vec<String> {
    let selects = |term: &Value| {
        [EXPRESSIONS, FIELDS].iter().any(|list| term[*list].as_array().is_some_and(|items| !items.is_empty()))
    };
    let terms = edit.get(&TERMS).and_then(Value::as_array).into_iter().flatten().enumerate();
    terms.filter(|(_, term)| selects(term)).map(|(index, _)| index.to_string()).collect()
}

/// One expression for each kind, and one for all neutral names, by the largest size that the pod asks of it. The size
/// is the resource name's, because the node reserves that much.
fn sizes(document: &RequestDocument) -> Vec<Value> {
    let mut largest: BTreeMap<Option<Kind>, SizeGb> = BTreeMap::new();
    for container in &document.containers {
        // A neutral name may have a larger size than its node: 90 GB of a GPU with 94 are kerf.dev/gpu-96gb.
        let guaranteed = container.resource.size().filter(|_| !container.resource.is_neutral());
        let guaranteed = guaranteed.unwrap_or(container.size_gb);
        let size = largest.entry(container.resource.kind()).or_insert(guaranteed);
        *size = guaranteed.max(*size);
    }
    let expression = |(kind, size): (Option<Kind>, SizeGb)| {
        let label = kind.map_or_else(|| keys::NODE_MAX_GB.to_owned(), keys::node_kind_label);
        // Node affinity has no operator for "at least", so this asks for more than one less.
        let below = size.0.saturating_sub(1).to_string();
        json!({"key": label, "operator": "Gt", "values": [below]})
    };
    largest.into_iter().map(expression).collect()
}

/// The requested and the excluded models. A node of several models may have a requested one, so it stays eligible. The
/// extender then checks its GPUs one by one. It does the same for UUIDs, which have no label.
fn models(document: &RequestDocument) -> Vec<Value> {
    let labels =
        |models: &[String]| models.iter().filter(|model| is_label(model)).cloned().collect::<Vec<_>>();
    let gpus = &document.gpus;
    let (mut wanted, unwanted) = (labels(&gpus.models), labels(&gpus.not_models));
    // Nodes with several models match, too: they may have a requested one, and their label has this value instead.
    if !gpus.models.is_empty() {
        wanted.push(keys::MIXED_MODELS.to_owned());
    }
    let lists = [("In", wanted), ("NotIn", unwanted)];
    let lists = lists.into_iter().filter(|(_, values)| !values.is_empty());
    lists
        .map(|(operator, values)| json!({"key": keys::NODE_MODEL, "operator": operator, "values": values}))
        .collect()
}

/// Whether a label can have this value. Other values are left out, because no labelled node has such a model, and the
/// API server rejects them.
fn is_label(value: &str) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    value.len() <= LONGEST_LABEL
        && ends(value.chars().next())
        && ends(value.chars().last())
        && value.chars().all(inside)
}
