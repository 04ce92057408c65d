//! What a pod must carry for its request, as the smallest patch that makes it so. Everything else in the pod is left as
//! it is; a pod that carries it all needs no patch.

mod affinity;
mod placement;
mod resources;

use crate::edit::Edit;
use json_patch::PatchOperation;
use kerf_core::admission::{Fit, Variable};
use kerf_core::contract::RequestDocument;
use kerf_core::keys;
use kerf_core::policy::Policy;
use serde_json::{Value, json};

/// The patch that makes `pod` carry what `document` says, as `fit` says.
pub(crate) fn patch(
    pod: &Value,
    document: &RequestDocument,
    policy: &Policy,
    fit: &Fit,
) -> Vec<PatchOperation> {
    let mut edit = Edit::new(pod);
    carry(&mut edit, document, fit);
    placement::runtime_class(&mut edit, policy);
    placement::movable(&mut edit, policy);
    for toleration in policy.tolerations() {
        edit.include(&["spec", "tolerations"], json!(toleration));
    }
    edit.finish()
}

/// The patch that makes `pod`, which was patched before, carry all that `document` says. What a policy adds for convenience
/// (tolerations, runtime class, whether the pod may be moved) is no part of it: a policy may change that while pods that it
/// admitted live.
pub(crate) fn mend(pod: &Value, document: &RequestDocument, fit: &Fit) -> Vec<PatchOperation> {
    let mut edit = Edit::new(pod);
    carry(&mut edit, document, fit);
    edit.finish()
}

/// Makes the pod carry the document.
fn carry(edit: &mut Edit, document: &RequestDocument, fit: &Fit) {
    resources::replace(edit, document);
    // Fields that this version does not know are taken out: it cannot say that they are true of the pod.
    let noted = edit.get(&["metadata", "annotations", keys::REQUEST]).and_then(Value::as_str);
    let noted = noted.and_then(|text| serde_json::from_str::<Value>(text).ok());
    if noted.is_none_or(|noted| noted != json!(document)) {
        edit.set(&["metadata", "annotations", keys::REQUEST], json!(document.to_json()));
    }
    edit.set(&["metadata", "labels", keys::SLICED], json!("true"));
    placement::scheduler(edit, &fit.scheduler);
    if fit.node.is_some() {
        placement::take_node_name(edit);
    }
    affinity::require(edit, document, fit);
    for Variable { list, index, place, .. } in &fit.taken_out {
        edit.remove(&["spec", list, &index.to_string(), "env", &place.to_string()]);
    }
}

/// The names of the containers in a list of the pod, in order.
fn names(edit: &Edit, list: &str) -> Vec<String> {
    let containers = edit.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
    containers.map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[cfg(test)]
mod tests;
