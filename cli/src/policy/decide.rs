//! What the webhook would decide on a pod, by the same functions of core.

use kerf_core::contract::RequestDocument;
use kerf_core::policy::{self, PodFacts, Policies, Supply};
use kerf_core::request::{self, PodView, Reading};
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
    namespace: &str,
    policies: &Policies,
    supply: &Supply,
) -> Result<Decision, serde_json::Error> {
    let view = PodView::deserialize(pod)?;
    let facts = view.facts(namespace, &request::models_named(&view));
    let policy = policies.of_pod(&facts);
    let reading =
        policy.map_or(Reading::WITHOUT_POLICY, |policy| Reading::of(policy.spec(), supply.largest_gpu()));
    let verdict = match (request::read(&view, &reading), policy) {
        (Err(error), _) => Verdict::Refused(error.to_string()),
        (Ok(None), _) => Verdict::Untouched,
        (Ok(Some(_)), None) => {
            let text = "no policy of kerf's matches a pod of namespace";
            Verdict::Refused(format!("{text} {namespace}, so it may not ask for a slice"))
        }
        (Ok(Some(ask)), Some(policy)) => match policy::choose(policy, supply, &ask) {
            Err(denied) => Verdict::Refused(denied.to_string()),
            Ok(choice) => Verdict::Served {
                document: Box::new(choice.document),
                warnings: choice.warnings.iter().map(ToString::to_string).collect(),
            },
        },
    };
    Ok(Decision { facts, verdict })
}
