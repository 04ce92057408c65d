//! Whether a pod that carries a request document is one that kerf admitted: it comes a second time when another webhook
//! changed it, or when somebody copied it. A document that does not match its pod is not believed.

use crate::admit::Refusal;
use crate::patch::is_patched;
use kerf_core::contract::RequestDocument;
use kerf_core::policy::{self, Denied, Policy};
use kerf_core::request::{self, PodView};
use serde_json::Value;

/// Checks `document` against the pod that carries it, by the rules that would have made it.
pub(crate) fn readmit(
    pod: &Value,
    view: &PodView,
    document: &RequestDocument,
    policy: &Policy,
) -> Result<(), Refusal> {
    let agrees = request::agrees(view, document, policy.spec().node_name)?;
    if !agrees || !is_patched(pod, document, policy) {
        return Err(Denied::Forged.into());
    }
    Ok(policy::verify(policy, document)?)
}
