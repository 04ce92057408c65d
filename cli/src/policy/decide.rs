//! The decision on a pod. The same function of core makes it for the webhook, so that both always agree.

use k8s_openapi::api::core::v1::Toleration;
use kerf_core::admission::{self, Admitted};
use kerf_core::contract::RequestDocument;
use kerf_core::policy::{Policies, Policy, Supply};
use kerf_core::request::{self, Namespace, PodFacts, PodView};
use kerf_runtime::destinations::Destinations;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    Untouched,
    Served { document: Box<RequestDocument>, warnings: Vec<String>, destinations: Box<Destinations> },
    Refused(String),
}

pub(crate) struct Decision {
    pub facts: PodFacts,
    pub verdict: Verdict,
}

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

/// The policy's tolerations. They count, because the webhook adds them to its pods.
fn tolerations(policy: &Policy) -> serde_json::Result<Vec<Toleration>> {
    serde_json::from_value(serde_json::json!(policy.tolerations()))
}
