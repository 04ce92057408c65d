//! From a pod, the policy and the cluster's supply to an admission. Pure: the same pod gets the same answer.

use crate::patch::{PodPatch, Unfit, patch};
use crate::readmit::readmit;
use json_patch::PatchOperation;
use kerf_core::contract::{RequestDocument, UnreadableRequest};
use kerf_core::keys;
use kerf_core::policy::{self, Policies, Supply};
use kerf_core::request::{self, AskError, Field, PodView, Reading};
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
        document: Box<RequestDocument>,
    },
    /// It carries its request already, and another webhook changed it since: it goes in with what it lacks.
    Mended {
        /// The patch.
        ops: Vec<PatchOperation>,
        /// What the user should know.
        warnings: Vec<String>,
    },
    /// It does not go in.
    Denied {
        /// Why, with the field and the remedy.
        message: String,
    },
}

impl Admission {
    /// Whether the pod is let in to wait for a kind that is full.
    pub(crate) fn waits(&self) -> bool {
        let Self::Patched { document, .. } = self else { return false };
        document.chosen.as_ref().is_some_and(|chosen| !chosen.waits.is_empty())
    }
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
    /// It would go past kerf.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// No policy is for it.
    #[error(
        "no policy of kerf's matches a pod of namespace {0}, so it may not ask for a slice; ask an admin for a GpuPolicy that does"
    )]
    NoPolicy(String),
    /// It is no pod.
    #[error("failed to read the pod: {0}")]
    Pod(#[from] serde_json::Error),
}

/// Decides on `pod`, a Pod's JSON, which is created in `namespace`.
#[must_use]
pub fn admit(pod: &Value, namespace: &str, policies: &Policies, supply: &Supply) -> Admission {
    admit_by("", pod, namespace, policies, supply)
}

/// The same by a replica of this name, which the document tells.
#[must_use]
pub(crate) fn admit_by(
    by: &str,
    pod: &Value,
    namespace: &str,
    policies: &Policies,
    supply: &Supply,
) -> Admission {
    decide(by, pod, namespace, policies, supply)
        .unwrap_or_else(|refusal| Admission::Denied { message: refusal.to_string() })
}

fn decide(
    by: &str,
    pod: &Value,
    namespace: &str,
    policies: &Policies,
    supply: &Supply,
) -> Result<Admission, Refusal> {
    let view = PodView::deserialize(pod)?;
    let annotations = &view.metadata.annotations;
    if let Some(key) = [keys::ASSIGNMENT, keys::ROOM].into_iter().find(|key| annotations.contains_key(*key)) {
        return Err(AskError::Reserved(Field::Annotation(key.to_owned())).into());
    }
    let policy = policies.of_pod(&view.facts(namespace, &request::models_named(&view)));
    let no_policy = || Refusal::NoPolicy(namespace.to_owned());
    if let Some(text) = annotations.get(keys::REQUEST) {
        let document = RequestDocument::parse(text)?;
        let PodPatch { ops, warnings } = readmit(pod, &view, &document, policy.ok_or_else(no_policy)?)?;
        return Ok(if ops.is_empty() { Admission::Untouched } else { Admission::Mended { ops, warnings } });
    }
    let reading =
        policy.map_or(Reading::WITHOUT_POLICY, |policy| Reading::of(policy.spec(), supply.largest_gpu()));
    let Some(ask) = request::read(&view, &reading)? else { return unasked(&view) };
    let policy = policy.ok_or_else(no_policy)?;
    let mut choice = policy::choose(policy, supply, &ask)?;
    if let Some(chosen) = &mut choice.document.chosen {
        by.clone_into(&mut chosen.by);
    }
    let PodPatch { ops, warnings } = patch(pod, &choice.document, policy)?;
    let warnings = choice.warnings.iter().map(ToString::to_string).chain(warnings).collect();
    Ok(Admission::Patched { ops, warnings, document: Box::new(choice.document) })
}

/// A pod that asks for nothing goes in as it is. With kerf's label it would pass for one that was admitted.
fn unasked(view: &PodView) -> Result<Admission, Refusal> {
    if view.metadata.labels.contains_key(keys::SLICED) {
        return Err(AskError::Reserved(Field::Label(keys::SLICED.to_owned())).into());
    }
    Ok(Admission::Untouched)
}

#[cfg(test)]
mod dialect_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod tests;
