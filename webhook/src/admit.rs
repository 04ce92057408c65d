//! From a pod, the policy and the cluster's supply to an admission. Pure: the same pod gets the same answer.

use crate::patch::{OtherScheduler, patch};
use crate::readmit::readmit;
use json_patch::PatchOperation;
use kerf_core::contract::{RequestDocument, UnreadableRequest};
use kerf_core::keys;
use kerf_core::policy::{self, Policy, Supply};
use kerf_core::request::{self, AskError, PodView};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It goes in as it is: it asks for no slice, or carries its request already.
    Untouched,
    /// It goes in with a patch.
    Patched {
        /// The patch.
        ops: Vec<PatchOperation>,
        /// What the user should know.
        warnings: Vec<String>,
        /// The request that the patch writes.
        document: RequestDocument,
    },
    /// It does not go in.
    Denied {
        /// Why, with the field and the remedy.
        message: String,
    },
}

/// Why a pod is denied.
#[derive(Debug, Error)]
pub(crate) enum Refusal {
    /// It asks wrongly.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The policy forbids what it asks.
    #[error(transparent)]
    Policy(#[from] policy::Denied),
    /// Its request document cannot be read.
    #[error(transparent)]
    Document(#[from] UnreadableRequest),
    /// It has another scheduler.
    #[error(transparent)]
    Scheduler(#[from] OtherScheduler),
    /// It is no pod.
    #[error("failed to read the pod: {0}")]
    Pod(#[from] serde_json::Error),
}

/// Decides on `pod`, a Pod's JSON.
#[must_use]
pub fn admit(pod: &Value, policy: &Policy, supply: &Supply) -> Admission {
    decide(pod, policy, supply).unwrap_or_else(|refusal| Admission::Denied { message: refusal.to_string() })
}

fn decide(pod: &Value, policy: &Policy, supply: &Supply) -> Result<Admission, Refusal> {
    let view = PodView::deserialize(pod)?;
    let annotations = &view.metadata.annotations;
    if annotations.contains_key(keys::ASSIGNMENT) {
        return Err(AskError::Reserved(keys::ASSIGNMENT).into());
    }
    if let Some(text) = annotations.get(keys::REQUEST) {
        readmit(pod, &view, &RequestDocument::parse(text)?, policy)?;
        return Ok(Admission::Untouched);
    }
    let Some(ask) = request::read(&view)? else { return Ok(Admission::Untouched) };
    let choice = policy::choose(policy, supply, &ask)?;
    let ops = patch(pod, &choice.document, policy)?;
    let warnings = choice.warnings.iter().map(ToString::to_string).collect();
    Ok(Admission::Patched { ops, warnings, document: choice.document })
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
