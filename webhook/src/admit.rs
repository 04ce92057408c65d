//! From a pod, the policy and the cluster's supply to an admission: core's decision, and the patch that makes it so. Pure: the
//! same pod gets the same answer.

use crate::patch::{clear, mend, patch};
use json_patch::PatchOperation;
use kerf_core::admission::{decide, restored};
use kerf_core::contract::RequestDocument;
use kerf_core::policy::{Namespace, Policies, Supply};
use serde_json::Value;

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It goes in as it is: it asks for no slice, or carries all that it must.
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
    /// It goes in with what it lacks of its request, which it carries already and another webhook changed since; or, where it
    /// asks for nothing, without what only kerf writes.
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
        /// One word for it ([`Refusal::reason`]).
        reason: &'static str,
    },
}

/// Decides on `pod`, a Pod's JSON, which is created in `namespace`.
#[must_use]
pub fn admit<'n>(
    pod: &Value,
    namespace: impl Into<Namespace<'n>>,
    policies: &Policies,
    supply: &Supply,
) -> Admission {
    let admitted = match decide(pod, namespace, policies, supply) {
        Ok(None) => return mended(clear(pod, policies), restored(pod).warning(false).into_iter().collect()),
        Ok(Some(admitted)) => admitted,
        Err(refusal) => {
            return Admission::Denied { message: refusal.to_string(), reason: refusal.reason() };
        }
    };
    if !admitted.again {
        let ops = patch(pod, &admitted.document, admitted.policy, policies, &admitted.fit);
        return Admission::Patched {
            ops,
            warnings: admitted.warnings,
            document: Box::new(admitted.document),
        };
    }
    mended(mend(pod, &admitted.document, &admitted.fit), admitted.warnings)
}

fn mended(ops: Vec<PatchOperation>, warnings: Vec<String>) -> Admission {
    if ops.is_empty() { Admission::Untouched } else { Admission::Mended { ops, warnings } }
}

#[cfg(test)]
mod dialect_tests;
#[cfg(test)]
mod forging_tests;
#[cfg(test)]
mod names_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod refusal_page;
#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
mod tests;
