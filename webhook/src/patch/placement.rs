//! Who places the pod, and where it may go: scheduler, preset node, runtime class, and whether it may be moved.

use super::Unfit;
use crate::edit::Edit;
use kerf_core::keys;
use kerf_core::policy::{NodeNameRule, Policy};
use kerf_core::request::{AskError, is_scheduler_of};
use serde_json::{Value, json};

/// The name that the API server gives pods that name no scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

const SCHEDULER: [&str; 2] = ["spec", "schedulerName"];
const NODE_NAME: [&str; 2] = ["spec", "nodeName"];
const RUNTIME_CLASS: [&str; 2] = ["spec", "runtimeClassName"];
const MOVABLE: [&str; 3] = ["metadata", "annotations", keys::MOVABLE];

fn text<'e>(edit: &'e Edit, path: &[&str]) -> Option<&'e str> {
    edit.get(path).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Gives the pod to the policy's scheduler. A policy that names none leaves the pod's: the cluster's own asks the extender.
/// A dialect's scheduler, which manifests that come over from there name, is left in no case.
pub(super) fn scheduler(edit: &mut Edit, policy: &Policy) -> Result<(), Unfit> {
    let wanted = policy.scheduler_name();
    let found = text(edit, &SCHEDULER).unwrap_or(DEFAULT_SCHEDULER);
    if is_scheduler_of(found, &policy.spec().dialects) || found == DEFAULT_SCHEDULER {
        let given = if wanted.is_empty() { DEFAULT_SCHEDULER } else { wanted };
        edit.set(&SCHEDULER, json!(given));
    } else if !wanted.is_empty() && found != wanted {
        return Err(Unfit::Scheduler { found: found.to_owned(), wanted: wanted.to_owned() });
    }
    Ok(())
}

/// Takes a preset node out of the pod, which would go past the scheduler with it.
pub(super) fn take_node_name(edit: &mut Edit, policy: &Policy) -> Result<Option<String>, Unfit> {
    let Some(node) = text(edit, &NODE_NAME).map(str::to_owned) else { return Ok(None) };
    match policy.spec().node_name {
        NodeNameRule::Refuse => Err(Unfit::NodeName(AskError::NodeName)),
        NodeNameRule::Affinity => {
            edit.remove(&NODE_NAME);
            Ok(Some(node))
        }
    }
}

/// The policy's runtime class for a pod that names none.
pub(super) fn runtime_class(edit: &mut Edit, policy: &Policy) {
    if let (Some(class), None) = (&policy.spec().runtime_class_name, text(edit, &RUNTIME_CLASS)) {
        edit.set(&RUNTIME_CLASS, json!(class));
    }
}

/// A pod that does not say whether it may be moved says what the policy says.
pub(super) fn movable(edit: &mut Edit, policy: &Policy) {
    if policy.spec().preemption.movable_by_default && edit.get(&MOVABLE).is_none() {
        edit.set(&MOVABLE, json!("true"));
    }
}
