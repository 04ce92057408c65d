//! What the webhook would decide on a pod, by the same function of core.

use k8s_openapi::api::core::v1::Toleration;
use kerf_core::admission::{self, Admitted};
use kerf_core::contract::RequestDocument;
use kerf_core::policy::{Namespace, PodFacts, Policies, Policy, Supply};
use kerf_core::request::{self, PodView};
use kerf_runtime::destinations::Destinations;
use serde::Deserialize;
use serde_json::Value;

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// It asks for no slice.
    Untouched,
    /// It is served.
    Served {
        /// What it asks for then.
        document: Box<RequestDocument>,
        /// What the user is told.
        warnings: Vec<String>,
        /// The nodes to which it may go, by its own words and its policy's.
        destinations: Box<Destinations>,
    },
    /// It is refused, and why.
    Refused(String),
}

/// A pod's verdict, and what of it decided which policy is for it.
pub(crate) struct Decision {
    pub facts: PodFacts,
    pub verdict: Verdict,
}

/// Decides on a Pod's JSON.
pub(crate) fn decide(
    pod: &Value,
    namespace: Namespace<'_>,
    policies: &Policies,
    supply: &Supply,
) -> Result<Decision, serde_json::Error> {
    let view = PodView::deserialize(pod)?;
    let facts = view.facts(namespace, &request::models_named(&view));
    let verdict = match admission::decide(pod, namespace, policies, supply) {
        Ok(None) => Verdict::Untouched,
        Ok(Some(Admitted { policy, document, warnings, .. })) => {
            let mut destinations = Destinations::of_pod(pod)?;
            destinations.chosen = destinations.chosen.with_labels(&document.nodes);
            destinations.tolerated.extend(tolerations(policy)?);
            let (document, destinations) = (Box::new(document), Box::new(destinations));
            Verdict::Served { document, warnings, destinations }
        }
        Err(refusal) => Verdict::Refused(refusal.to_string()),
    };
    Ok(Decision { facts, verdict })
}

/// What the policy lets its pods tolerate, which the webhook writes into them.
fn tolerations(policy: &Policy) -> serde_json::Result<Vec<Toleration>> {
    serde_json::from_value(serde_json::json!(policy.tolerations()))
}
