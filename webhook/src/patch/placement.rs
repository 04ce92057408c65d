//! The pod's scheduler, preset node, runtime class, and whether it may be evicted for others.

use crate::edit::Edit;
use kerf_core::keys;
use kerf_core::policy::Policy;
use serde_json::{Value, json};

const SCHEDULER: [&str; 2] = ["spec", "schedulerName"];
const NODE_NAME: [&str; 2] = ["spec", "nodeName"];
const RUNTIME_CLASS: [&str; 2] = ["spec", "runtimeClassName"];
const MOVABLE: [&str; 3] = ["metadata", "annotations", keys::MOVABLE];

pub(super) fn scheduler(edit: &mut Edit, name: &str) {
    edit.set(&SCHEDULER, json!(name));
}

/// Removes a preset node from the pod, because it would bypass the scheduler.
pub(super) fn take_node_name(edit: &mut Edit) {
    edit.remove(&NODE_NAME);
}

/// Sets the policy's runtime class, unless the pod names one, because the user's choice counts more.
pub(super) fn runtime_class(edit: &mut Edit, policy: &Policy) {
    let named = edit.get(&RUNTIME_CLASS).and_then(Value::as_str).filter(|class| !class.is_empty());
    if let (Some(class), None) = (&policy.spec().runtime_class_name, named) {
        edit.set(&RUNTIME_CLASS, json!(class));
    }
}

/// Marks the pod as movable if the policy does so by default, unless the pod has the annotation, because the user's
/// choice counts more.
pub(super) fn movable(edit: &mut Edit, policy: &Policy) {
    if policy.spec().preemption.movable_by_default && edit.get(&MOVABLE).is_none() {
        edit.set(&MOVABLE, json!("true"));
    }
}
