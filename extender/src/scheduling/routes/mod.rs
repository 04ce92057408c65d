//! The HTTP server for kube-scheduler: reads its requests, has them decided, and writes the answers. Only a leader that
//! has listed the cluster answers.

mod preempt;

pub use preempt::Lag;

use crate::metric_labels::{Outcome, Verb};
use crate::metrics::Metrics;
use crate::scheduling::bind;
use crate::scheduling::binding::Bind;
use crate::scheduling::filter::{self, Unserved};
use crate::scheduling::wire::{BindArgs, BindResult, ExtenderArgs, FilterResult, HostPriority};
use crate::term::CurrentTerm;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use kerf_core::kind::KindLabel;
use kerf_core::packing::Refusal;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The largest request: 5,000 nodes and a large pod are 200 KB; an object in etcd is at most 1.5 MB.
const BODY_LIMIT: usize = 8 << 20;

const NOT_LEADER: &str =
    "not the leader, or the leader has not listed the cluster yet; the scheduler tries again";
const NO_NAMES: &str =
    "no NodeNames in the request: set nodeCacheCapable for kerf's extender (see kerf scheduler-config)";

/// The state that all handlers share.
#[derive(Debug, Clone)]
pub struct Shared {
    /// The term that answers requests, if this replica leads.
    pub current_term: Arc<CurrentTerm>,
    pub metrics: Metrics,
    /// How long a bind may wait for its slices.
    pub bind_timeout: Duration,
    /// When a preemption was last answered late.
    pub lag: Arc<Lag>,
}

/// Routes the verbs under the paths that `kerf scheduler-config` writes.
pub fn router(shared: Shared) -> Router {
    Router::new()
        .route("/scheduler/filter", post(filter))
        .route("/scheduler/prioritize", post(prioritize))
        .route("/scheduler/preempt", post(preempt::preempt))
        .route("/scheduler/bind", post(bind))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .layer(middleware::from_fn_with_state(shared.clone(), close_unless_leading))
        .with_state(shared)
}

/// Closes the connection after an answer of a replica that does not lead. kube-scheduler may have connected here in the
/// moment between two leaders. It would keep the connection, and never reach the leader.
async fn close_unless_leading(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if shared.current_term.term().is_none() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn filter(State(shared): State<Shared>, body: Bytes) -> Response {
    let began = Instant::now();
    let (response, kind, outcome) = filter_answer(&shared, &body, began);
    shared.metrics.answered(Verb::Filter, kind, outcome, began.elapsed());
    response
}

/// The answer, the kind of slice that the pod is to get, and the outcome for metrics.
type Answer = (Response, KindLabel, Outcome);

fn filter_answer(shared: &Shared, body: &[u8], now: Instant) -> Answer {
    let failed = |text: &str, outcome| (json(&FilterResult::error(text)), KindLabel::None, outcome);
    let Some(term) = shared.current_term.term() else { return failed(NOT_LEADER, Outcome::NotLeader) };
    let args: ExtenderArgs<'_> = match serde_json::from_slice(body) {
        Ok(args) => args,
        Err(error) => return failed(&unreadable(&error), Outcome::BadRequest),
    };
    let Some(offered) = args.node_names() else { return failed(NO_NAMES, Outcome::BadRequest) };
    if args.asks_for_nothing() {
        return (json(&FilterResult::all(offered)), KindLabel::None, Outcome::Ok);
    }
    let pod = args.candidate();
    let filtered = term.answer(|index| {
        let filtered = filter::filter(index, &pod, &offered, now);
        if let Some(Unserved { owner, ask }) = &filtered.unserved {
            index.room_maker().make_room(owner, ask, &offered, now);
        }
        filtered
    });
    let Some(filtered) = filtered else { return failed(NOT_LEADER, Outcome::NotLeader) };
    let outcome = if filtered.fitting.is_empty() { Outcome::Refused } else { Outcome::Ok };
    if tracing::enabled!(tracing::Level::DEBUG) {
        let mut refused: BTreeMap<Refusal, usize> = BTreeMap::new();
        filtered.refused.iter().for_each(|(_, refusal)| *refused.entry(*refusal).or_default() += 1);
        let us = now.elapsed().as_micros();
        tracing::debug!(pod = %pod.key, offered = offered.len(), fitting = filtered.fitting.len(), ?refused, us, "filtered");
    }
    (json(&FilterResult::from(filtered)), pod.kind(), outcome)
}

async fn prioritize(State(shared): State<Shared>, body: Bytes) -> Response {
    let began = Instant::now();
    let (response, kind, outcome) = prioritize_answer(&shared, &body, began);
    shared.metrics.answered(Verb::Prioritize, kind, outcome, began.elapsed());
    response
}

/// The scheduler ignores errors of this verb, so an empty list has the same effect.
fn prioritize_answer(shared: &Shared, body: &[u8], now: Instant) -> Answer {
    let nothing = |outcome| (json::<[HostPriority<'_>]>(&[]), KindLabel::None, outcome);
    let Some(term) = shared.current_term.term() else { return nothing(Outcome::NotLeader) };
    let Ok(args) = serde_json::from_slice::<ExtenderArgs<'_>>(body) else {
        return nothing(Outcome::BadRequest);
    };
    let Some(offered) = args.node_names() else { return nothing(Outcome::BadRequest) };
    if args.asks_for_nothing() {
        return nothing(Outcome::Ok);
    }
    let pod = args.candidate();
    let Some(scores) = term.answer(|index| filter::prioritize(index, &pod, &offered, now)) else {
        return nothing(Outcome::NotLeader);
    };
    let scores: Vec<_> = scores.into_iter().map(|(host, score)| HostPriority { host, score }).collect();
    (json(scores.as_slice()), pod.kind(), Outcome::Ok)
}

async fn bind(State(shared): State<Shared>, body: Bytes) -> Response {
    let began = Instant::now();
    let (error, kind, outcome) = bind_answer(&shared, &body).await;
    shared.metrics.answered(Verb::Bind, kind, outcome, began.elapsed());
    json(&BindResult { error })
}

async fn bind_answer(shared: &Shared, body: &[u8]) -> (String, KindLabel, Outcome) {
    let failed = |text: String, outcome| (text, KindLabel::None, outcome);
    let Some(term) = shared.current_term.term() else {
        return failed(NOT_LEADER.to_owned(), Outcome::NotLeader);
    };
    let args: BindArgs = match serde_json::from_slice(body) {
        Ok(args) => args,
        Err(error) => return failed(unreadable(&error), Outcome::BadRequest),
    };
    let bind = Bind::from(args);
    let uid = bind.uid.clone();
    let bound = bind::bind(&term, bind, shared.bind_timeout).await;
    // The pod's slice is chosen by now, if it gets one.
    let kind = term.with(|index| index.statistics().counted(&uid)).kind;
    match bound {
        Ok(()) => (String::new(), kind, Outcome::Ok),
        Err(error) => (error.to_string(), kind, error.outcome()),
    }
}

fn unreadable(error: &serde_json::Error) -> String {
    format!("failed to read the scheduler's request: {error}; is it kube-scheduler's extender/v1?")
}

/// Writes the answer in one piece, so that it has a Content-Length and the scheduler can reuse the connection.
fn json<T: Serialize + ?Sized>(answer: &T) -> Response {
    match serde_json::to_vec(answer) {
        Ok(bytes) => ([(CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => {
            tracing::error!(%error, "failed to write an answer");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests;
