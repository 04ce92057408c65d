//! Whether a pod that carries a request document is one that kerf admitted: it comes a second time when another webhook
//! changed it, or when somebody copied it. A document that does not match its pod is not believed.

use crate::admit::Refusal;
use crate::patch::{PodPatch, mend};
use kerf_core::contract::RequestDocument;
use kerf_core::policy::{self, Denied, Policy};
use kerf_core::request::{self, PodView};
use serde_json::Value;

/// Checks `document` against the pod that carries it, by the rules that would have made it; gives what the pod lacks of it.
///
/// What asks must be as the document says: only the user could have written it otherwise. What follows from that, another
/// webhook may have changed that knows nothing of kerf, and it is put right without a new choice.
pub(crate) fn readmit(
    pod: &Value,
    view: &PodView,
    document: &RequestDocument,
    policy: &Policy,
) -> Result<PodPatch, Refusal> {
    if !request::agrees(view, document, policy.spec().node_name)? {
        return Err(Denied::Forged.into());
    }
    policy::verify(policy, document)?;
    Ok(mend(pod, document, policy)?)
}
