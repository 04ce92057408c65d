//! What a pod must carry for its request, as the smallest patch that makes it so. Everything else in the pod is left as
//! it is; a pod that carries it all needs no patch.

mod affinity;
mod environment;
mod placement;
mod resources;

use crate::edit::Edit;
use json_patch::PatchOperation;
use kerf_core::contract::RequestDocument;
use kerf_core::keys;
use kerf_core::policy::Policy;
use kerf_core::request::AskError;
use serde_json::{Value, json};
use thiserror::Error;

/// The lists of a pod's containers that can have slices, in the order of the API.
const CONTAINERS: [&str; 2] = ["initContainers", "containers"];

/// The patch of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodPatch {
    /// The patch.
    pub ops: Vec<PatchOperation>,
    /// What it takes away from the user.
    pub warnings: Vec<String>,
}

/// Something in the pod would lead past kerf, and the policy does not say to take it out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Unfit {
    /// It names a scheduler that cannot cut.
    #[error(
        "spec.schedulerName: {found} does not cut GPUs; remove it, pods with slices are scheduled by {wanted}"
    )]
    Scheduler {
        /// The scheduler that it names.
        found: String,
        /// The policy's.
        wanted: String,
    },
    /// It names its node.
    #[error(transparent)]
    NodeName(AskError),
    /// A container sets a variable by which it would see other GPUs than its own, or leave its limits.
    #[error(
        "container {container}, env[{name}]: it would lead past the pod's slice; remove it, kerf sets what the container needs"
    )]
    Environment {
        /// The container.
        container: String,
        /// The variable.
        name: String,
    },
}

/// The patch that makes `pod` carry what `document` says.
pub(crate) fn patch(pod: &Value, document: &RequestDocument, policy: &Policy) -> Result<PodPatch, Unfit> {
    let mut edit = Edit::new(pod);
    let warnings = carry(&mut edit, document, policy)?;
    placement::runtime_class(&mut edit, policy);
    placement::movable(&mut edit, policy);
    for toleration in policy.tolerations() {
        edit.include(&["spec", "tolerations"], json!(toleration));
    }
    Ok(PodPatch { ops: edit.finish(), warnings })
}

/// The patch that makes `pod`, which was patched before, carry all that `document` says. What a policy adds for convenience
/// (tolerations, runtime class, whether the pod may be moved) is no part of it: a policy may change that while pods that it
/// admitted live.
pub(crate) fn mend(pod: &Value, document: &RequestDocument, policy: &Policy) -> Result<PodPatch, Unfit> {
    let mut edit = Edit::new(pod);
    let warnings = carry(&mut edit, document, policy)?;
    Ok(PodPatch { ops: edit.finish(), warnings })
}

/// Makes the pod carry the document; gives what the user should know.
fn carry(edit: &mut Edit, document: &RequestDocument, policy: &Policy) -> Result<Vec<String>, Unfit> {
    resources::replace(edit, document);
    // Fields that this version does not know are taken out: it cannot say that they are true of the pod.
    let noted = edit.get(&["metadata", "annotations", keys::REQUEST]).and_then(Value::as_str);
    if noted.and_then(|text| serde_json::from_str::<Value>(text).ok()) != Some(json!(document)) {
        edit.set(&["metadata", "annotations", keys::REQUEST], json!(document.to_json()));
    }
    edit.set(&["metadata", "labels", keys::SLICED], json!("true"));
    placement::scheduler(edit, policy)?;
    let node = placement::take_node_name(edit, policy)?;
    affinity::require(edit, document, node.as_deref());
    environment::clear(edit, document, policy.spec().environment)
}

/// The names of the containers in a list of the pod, in order.
fn names(edit: &Edit, list: &str) -> Vec<String> {
    let containers = edit.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
    containers.map(|container| container["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[cfg(test)]
mod tests;
