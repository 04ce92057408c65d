//! Turns the bytes of a question into the answer's text without any running parts, for callers with their own bytes and
//! supply.

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
