//! The program's answer to given bytes, for the tests of other crates: without HTTP, a cluster or a policy folder.

use crate::decision::decide;
use crate::review;
use kerf_core::policy::{Policies, Supply};

/// Answers the `AdmissionReview` in `body`; `None` if it cannot be parsed.
#[must_use]
pub fn answer(body: &[u8], policies: &Policies, supply: &Supply) -> Option<String> {
    let request = review::read(body).ok()?;
    let admission = decide(&request, request.namespace.as_str(), policies, supply);
    serde_json::to_string(&review::answer(&request.uid, &admission)).ok()
}
