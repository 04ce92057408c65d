//! The `preempt` verb: kube-scheduler calls it after it has chosen possible victims, and before it evicts them.

use super::{Answer, NOT_LEADER, Shared, json, unreadable};
use crate::metric_labels::{Outcome, Verb};
use crate::scheduling::filter::Candidate;
use crate::scheduling::preempt::{self, Plan, Preempted};
use crate::scheduling::wire::PreemptArgs;
use crate::term::Term;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kerf_core::kind::KindLabel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::sleep;

pub(super) const NO_VICTIMS: &str = "no NodeNameToMetaVictims in the request: set nodeCacheCapable for kerf's extender (see kerf scheduler-config)";

/// How long a pod's end may take to be seen here once the scheduler has seen it. The scheduler asks as soon as that
/// happens. After a refusal it does not ask again until another pod ends, or for five minutes.
const SEEN_TIMEOUT: Duration = Duration::from_millis(100);
/// The interval of retries meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The shortest interval between two late answers. The scheduler does nothing else while it waits for one. So one per
/// second may be late, which is the first: that of the pod with the highest priority.
const LATE_ANSWER_INTERVAL: Duration = Duration::from_secs(1);

/// When an answer was last late.
#[derive(Debug, Default)]
pub struct Lag(Mutex<Option<Instant>>);

impl Lag {
    /// Whether an answer may be late now. If so, the next may not be for a while.
    fn is_due(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= LATE_ANSWER_INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

pub(super) async fn preempt(State(shared): State<Shared>, body: Bytes) -> Response {
    let began = Instant::now();
    let (response, kind, outcome) = answer(&shared, &body).await;
    shared.metrics.answered(Verb::Preempt, kind, outcome, began.elapsed());
    response
}

/// An error ends the preemption: no pod is evicted, and the pod stays pending. The answer has no field for an error, so
/// the HTTP status carries it.
async fn answer(shared: &Shared, body: &[u8]) -> Answer {
    let bad = |text: String| {
        ((StatusCode::BAD_REQUEST, text).into_response(), KindLabel::None, Outcome::BadRequest)
    };
    let not_leader = || {
        let response = (StatusCode::SERVICE_UNAVAILABLE, NOT_LEADER).into_response();
        (response, KindLabel::None, Outcome::NotLeader)
    };
    let Some(term) = shared.current_term.term() else { return not_leader() };
    let args: PreemptArgs<'_> = match serde_json::from_slice(body) {
        Ok(args) => args,
        Err(error) => return bad(unreadable(&error)),
    };
    let Some(plans) = args.nodes() else { return bad(NO_VICTIMS.to_owned()) };
    if args.asks_for_nothing() {
        return (json(&args.leave(None)), KindLabel::None, Outcome::Ok);
    }
    let pod = args.candidate();
    let decided = decide(&term, &shared.lag, &pod, &plans).await;
    if term.answer(|index| preempt::record_answer(index, &pod, &decided, Instant::now())).is_none() {
        return not_leader();
    }
    let Preempted { kept, spared } = decided;
    let reasons = preempt::reasons(&spared);
    tracing::info!(pod = %pod.key, uid = %pod.uid, nodes = plans.len(), kept = kept.len(), spared = ?reasons, "preemption asked");
    let outcome = if kept.is_empty() { Outcome::Refused } else { Outcome::Ok };
    (json(&args.leave(Some(&kept))), pod.kind(), outcome)
}

/// Decides. It retries for a moment before it refuses, if the end of another pod would change the answer.
async fn decide<'n>(term: &Arc<Term>, lag: &Lag, pod: &Candidate, plans: &[Plan<'n>]) -> Preempted<'n> {
    let began = Instant::now();
    let look = || term.with(|index| preempt::preempt(index, pod, plans, Instant::now()));
    let mut decided = look();
    if !decided.may_change() || !lag.is_due(began) {
        return decided;
    }
    while decided.may_change() && began.elapsed() < SEEN_TIMEOUT {
        sleep(POLL_INTERVAL).await;
        decided = look();
    }
    decided
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_one_answer_a_second_is_late() {
        let (lag, now) = (Lag::default(), Instant::now());
        let after = [0, 1, 999, 1000, 1001].map(|ms| lag.is_due(now + Duration::from_millis(ms)));
        assert_eq!(after, [true, false, false, true, false]);
    }
}
