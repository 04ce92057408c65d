//! What a pod must carry for its request, as the smallest patch that adds it. Everything else in the pod stays. A pod
//! that carries everything needs no patch, so that a second call of the webhook changes nothing.

mod affinity;
mod placement;
mod resources;

use crate::edit::Edit;
use json_patch::PatchOperation;
use kerf_core::admission::{Fit, Variable, restored};
use kerf_core::contract::RequestDocument;
use kerf_core::keys;
use kerf_core::policy::{Policies, Policy};
use serde_json::{Value, json};

/// The patch that makes `pod` carry what `document` and `fit` say. It also removes what kerf has written into the pod
/// before, because an earlier policy may have decided otherwise.
pub(crate) fn patch(
    pod: &Value,
    document: &RequestDocument,
    policy: &Policy,
    policies: &Policies,
    fit: &Fit,
) -> Vec<PatchOperation> {
    let restored = restored(pod);
    let mut edit = Edit::new(&restored.pod);
    // An equal document needs the same expressions, so they stay.
    if let Some(former) = restored.former.as_ref().filter(|former| *former != document) {
        affinity::withdraw(&mut edit, former, policies);
    }
    carry(&mut edit, document, fit);
    placement::runtime_class(&mut edit, policy);
    placement::movable(&mut edit, policy);
    for toleration in policy.tolerations() {
        edit.include(&["spec", "tolerations"], json!(toleration));
    }
    // The patch starts from the pod as it came, so that it also removes what `restored` has left out.
    edit.finish(pod)
}

/// The patch for a `pod` that was patched before and must carry everything that `document` says. A policy's
/// conveniences (tolerations, runtime class, whether the pod may be evicted) are left out, because the policy may
/// change them while its pods live.
pub(crate) fn mend(pod: &Value, document: &RequestDocument, fit: &Fit) -> Vec<PatchOperation> {
    let mut edit = Edit::new(&restored(pod).pod);
    carry(&mut edit, document, fit);
    edit.finish(pod)
}

/// The patch that removes from `pod`, which asks for nothing, what kerf or a forger has written into it.
pub(crate) fn clear(pod: &Value, policies: &Policies) -> Vec<PatchOperation> {
    let restored = restored(pod);
    let mut edit = Edit::new(&restored.pod);
    if let Some(former) = &restored.former {
        affinity::withdraw(&mut edit, former, policies);
    }
    edit.finish(pod)
}

fn carry(edit: &mut Edit, document: &RequestDocument, fit: &Fit) {
    resources::replace(edit, document);
    edit.set(&["metadata", "annotations", keys::REQUEST], json!(document.to_json()));
    edit.set(&["metadata", "labels", keys::SLICED], json!("true"));
    placement::scheduler(edit, &fit.scheduler);
    if fit.node.is_some() {
        placement::take_node_name(edit);
    }
    affinity::require(edit, document, fit);
    if fit.user_namespace {
        edit.set(&["spec", "hostUsers"], json!(false));
    }
    for Variable { list, index, place, .. } in &fit.taken_out {
        edit.remove(&["spec", list, &index.to_string(), "env", &place.to_string()]);
    }
}

fn names(edit: &Edit, list: &str) -> Vec<String> {
    let containers = edit.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
    containers.map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[cfg(test)]
mod tests;
