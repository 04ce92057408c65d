//! What the webhook would decide on a pod, by the same function of core.

use kerf_core::admission::{self, Admitted};
use kerf_core::contract::RequestDocument;
use kerf_core::policy::{Namespace, PodFacts, Policies, Supply};
use kerf_core::request::{self, PodView};
use serde::Deserialize;
use serde_json::Value;

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It asks for no slice.
    Untouched,
    /// It is served.
    Served {
        /// What it asks for then.
        document: Box<RequestDocument>,
        /// What the user is told.
        warnings: Vec<String>,
    },
    /// It is refused, and why.
    Refused(String),
}

/// A pod's verdict, and what of it decided which policy is for it.
pub(super) struct Decision {
    pub facts: PodFacts,
    pub verdict: Verdict,
}

/// Decides on a Pod's JSON.
pub(super) fn decide(
    pod: &Value,
    namespace: Namespace<'_>,
    policies: &Policies,
    supply: &Supply,
) -> Result<Decision, serde_json::Error> {
    let view = PodView::deserialize(pod)?;
    let facts = view.facts(namespace, &request::models_named(&view));
    let verdict = match admission::decide(pod, namespace, policies, supply) {
        Ok(None) => Verdict::Untouched,
        Ok(Some(Admitted { document, warnings, .. })) => {
            Verdict::Served { document: Box::new(document), warnings }
        }
        Err(refusal) => Verdict::Refused(refusal.to_string()),
    };
    Ok(Decision { facts, verdict })
}
