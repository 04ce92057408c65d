//! Checks that exactly the pods that the policies take are sent to the webhook. The webhook fails closed, so every
//! other pod would depend on it.

use super::{Finding, Observed, policies};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use kerf_core::admission::MatchCondition;
use kerf_core::request::Dialect;

const PROGRAM: &str = "kerf-webhook";

/// `None` if the policies cannot be read, because that is a finding of the policies' group.
pub fn judge(seen: &Observed, webhooks: &[MutatingWebhook]) -> Option<Finding> {
    let needed = MatchCondition::for_policies(&policies::policies(seen).ok()?);
    let pods = webhooks.iter().find(|webhook| webhook.name == MatchCondition::WEBHOOK)?;
    let mut conditions = pods.match_conditions.iter().flatten();
    let found = conditions.find(|condition| condition.name == MatchCondition::NAME);
    let found = found.and_then(|condition| MatchCondition::parse(&condition.expression));
    let place = format!("the match condition {} of {}", MatchCondition::NAME, MatchCondition::WEBHOOK);
    let is_fixed = seen.flag_of(PROGRAM, "--match-conditions") == Some("off");
    let remedy = remedy(seen, is_fixed, &needed);
    let Some(found) = found else {
        let what = format!("{place} is not one that kerf writes: it may let pods past the policies");
        return Some(Finding::failure(what, remedy));
    };
    let only_in = |one: &MatchCondition, other: &MatchCondition| {
        list(one.dialects().filter(|d| !other.dialects().any(|o| o == *d)))
    };
    Some(if !found.covers(&needed) {
        let dialects = only_in(&needed, &found);
        let what = format!("{place} lets pods past that ask in dialects which policies take: {dialects}");
        Finding::failure(what, remedy)
    } else if found == needed {
        Finding::fine(format!("the pods that policies take, and no others, come to {}", pods.name))
    } else {
        let dialects = only_in(&found, &needed);
        let what = format!(
            "{place} sends pods to the webhook that ask in dialects which no policy takes: {dialects}; an outage of kerf stops them"
        );
        // A wide condition is a warning only, because the webhook narrows it after two minutes. With
        // `--match-conditions=off` it never does, so that is a failure.
        if is_fixed { Finding::failure(what, remedy) } else { Finding::warning(what, remedy) }
    })
}

fn remedy(seen: &Observed, is_fixed: bool, needed: &MatchCondition) -> String {
    let fix = format!(
        "set webhook.matchConditions=fixed and webhook.dialects=[{}] in the chart's values",
        list(needed.dialects())
    );
    if is_fixed {
        return fix;
    }
    let namespace = &seen.namespace;
    format!(
        "the webhook widens it within seconds and narrows it after two minutes: look at its log, kubectl -n {namespace} logs deploy/{PROGRAM}; where another puts it back, as GitOps does, {fix}"
    )
}

fn list(dialects: impl Iterator<Item = Dialect>) -> String {
    dialects.map(|dialect| dialect.to_string()).collect::<Vec<_>>().join(", ")
}
