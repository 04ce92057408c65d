//! Turns a pod, the policies and the cluster's supply into an admission: core's decision, and the patch for it. It is
//! pure, because the API server may ask about a pod again and must get the same answer.

use crate::admission::Admission;
use crate::patch::{clear, mend, patch};
use json_patch::PatchOperation;
use kerf_core::admission::{decide, restored};
use kerf_core::policy::{Policies, Supply};
use kerf_core::request::Namespace;
use serde_json::Value;

pub(crate) fn admit<'n>(
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
