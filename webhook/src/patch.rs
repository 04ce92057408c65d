//! What a pod must carry for its request, as the smallest patch that makes it so. Everything else in the pod is left as
//! it is; a pod that carries it all needs no patch.

use crate::edit::Edit;
use json_patch::PatchOperation;
use kerf_core::contract::{ContainerRequest, RequestDocument};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::policy::Policy;
use kerf_core::resource::{ResourceName, asked_size};
use kerf_core::units::SizeGb;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use thiserror::Error;

/// The name that the API server gives pods that name no scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// The pod names a scheduler that cannot cut.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "spec.schedulerName: {found} does not cut GPUs; remove it, pods with slices are scheduled by {wanted}"
)]
pub(crate) struct OtherScheduler {
    found: String,
    wanted: String,
}

/// The patch that makes `pod` carry what `document` says.
pub(crate) fn patch(
    pod: &Value,
    document: &RequestDocument,
    policy: &Policy,
) -> Result<Vec<PatchOperation>, OtherScheduler> {
    let mut edit = Edit::new(pod);
    carry(&mut edit, document, policy)?;
    for toleration in policy.tolerations() {
        edit.include(&["spec", "tolerations"], json!(toleration));
    }
    Ok(edit.finish())
}

/// Whether `pod` carries all that `document` says. Tolerations are no part of it: a policy may change them while pods
/// that it admitted live.
pub(crate) fn is_patched(pod: &Value, document: &RequestDocument, policy: &Policy) -> bool {
    let mut edit = Edit::new(pod);
    carry(&mut edit, document, policy).is_ok() && edit.finish().is_empty()
}

fn carry(edit: &mut Edit, document: &RequestDocument, policy: &Policy) -> Result<(), OtherScheduler> {
    resources(edit, document);
    let noted = edit.get(&["metadata", "annotations", keys::REQUEST]).and_then(Value::as_str);
    if noted.and_then(|text| RequestDocument::parse(text).ok()).as_ref() != Some(document) {
        edit.set(&["metadata", "annotations", keys::REQUEST], json!(document.to_json()));
    }
    edit.set(&["metadata", "labels", keys::SLICED], json!("true"));
    scheduler(edit, policy)?;
    node_affinity(edit, document);
    Ok(())
}

/// Limits and requests of every container: the resource that was chosen and none of the keys that asked for it.
fn resources(edit: &mut Edit, document: &RequestDocument) {
    for list in ["initContainers", "containers"] {
        let containers = edit.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
        let names: Vec<String> =
            containers.map(|c| c["name"].as_str().unwrap_or_default().to_owned()).collect();
        for (index, name) in names.iter().enumerate() {
            if let Some(request) = document.containers.iter().find(|request| request.name == *name) {
                container_resources(edit, &["spec", list, &index.to_string(), "resources"], request);
            }
        }
    }
}

fn container_resources(edit: &mut Edit, resources: &[&str], request: &ContainerRequest) {
    let resource = request.resource.to_string();
    for map in ["limits", "requests"] {
        let path = [resources, &[map]].concat();
        let entries = edit.get(&path).and_then(Value::as_object).into_iter().flatten();
        let asks: Vec<String> =
            entries.map(|(key, _)| key).filter(|key| **key != resource && is_ask(key)).cloned().collect();
        for ask in asks {
            edit.remove(&[&path[..], &[&ask]].concat());
        }
        edit.set(&[&path[..], &[&resource]].concat(), json!(request.count.to_string()));
    }
}

/// Whether a resource name is one that asks for a slice.
fn is_ask(name: &str) -> bool {
    asked_size(name).is_some() || name.parse::<ResourceName>().is_ok()
}

fn scheduler(edit: &mut Edit, policy: &Policy) -> Result<(), OtherScheduler> {
    const PATH: [&str; 2] = ["spec", "schedulerName"];
    let (found, wanted) = (edit.get(&PATH).and_then(Value::as_str), policy.scheduler_name());
    match found {
        Some(found) if !found.is_empty() && found != DEFAULT_SCHEDULER && found != wanted => {
            Err(OtherScheduler { found: found.to_owned(), wanted: wanted.to_owned() })
        }
        _ => {
            edit.set(&PATH, json!(wanted));
            Ok(())
        }
    }
}

/// Only nodes that can ever serve the pod, so that the scheduler's sample of nodes is drawn from them. By the labels
/// that agents keep, never by node names.
fn node_affinity(edit: &mut Edit, document: &RequestDocument) {
    const TERMS: [&str; 5] = [
        "spec",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    let wanted = expressions(document);
    let Some(terms) = edit.get(&TERMS).and_then(Value::as_array) else {
        return edit.set(&TERMS, json!([{"matchExpressions": wanted}]));
    };
    // A term without expressions matches no node. With ours it would match some.
    let selects = |term: &Value| {
        ["matchExpressions", "matchFields"]
            .iter()
            .any(|list| term[*list].as_array().is_some_and(|l| !l.is_empty()))
    };
    let selecting: Vec<String> = terms
        .iter()
        .enumerate()
        .filter(|(_, term)| selects(term))
        .map(|(index, _)| index.to_string())
        .collect();
    for index in &selecting {
        for expression in &wanted {
            edit.include(&[&TERMS[..], &[index, "matchExpressions"]].concat(), expression.clone());
        }
    }
}

/// One expression a kind, by the largest size that the pod wants of it. The size is the resource name's, which is what
/// the node must keep.
fn expressions(document: &RequestDocument) -> Vec<Value> {
    let mut largest: BTreeMap<Kind, SizeGb> = BTreeMap::new();
    for container in &document.containers {
        let promised = container.resource.size().unwrap_or(container.size_gb);
        let size = largest.entry(container.kind()).or_insert(promised);
        *size = promised.max(*size);
    }
    let expression = |(kind, size): (Kind, SizeGb)| {
        let below = size.0.saturating_sub(1).to_string();
        json!({"key": keys::node_kind_label(kind), "operator": "Gt", "values": [below]})
    };
    largest.into_iter().map(expression).collect()
}
