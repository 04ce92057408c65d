//! HTTP: one question in, one answer out, one log line. What the answer is, is a `Decision`.

use crate::admit::{Admission, admit_by};
use crate::decision::Decision;
use crate::metrics::{Metrics, Outcome};
use crate::review::{self, Request};
use crate::supply_watch::LiveSupply;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use bytes::Bytes;
use kerf_runtime::policy_file::PolicyStore;
use std::time::Instant;

/// The largest question. An object has at most 1.5 MiB in etcd and comes as JSON, in an update twice.
const LARGEST_BODY: usize = 8 << 20;

/// How often a pod is decided on anew because another was admitted meanwhile. Beyond it two may be sent to one free slice,
/// and one of them waits.
const MOST_TRIES: u32 = 4;

/// What answers are made from.
#[derive(Debug, Clone)]
pub(crate) struct Webhook {
    /// The policies in force.
    pub policy: PolicyStore,
    /// What the cluster can serve.
    pub supply: LiveSupply,
    /// What is counted.
    pub metrics: Metrics,
}

/// `POST /mutate`.
pub(crate) fn routes(webhook: Webhook) -> Router {
    let mutate = post(mutate).layer(DefaultBodyLimit::max(LARGEST_BODY));
    Router::new().route("/mutate", mutate).with_state(webhook)
}

async fn mutate(State(webhook): State<Webhook>, body: Bytes) -> Response {
    let started = Instant::now();
    let (outcome, response) = match review::read(&body) {
        Ok(request) => {
            let decision = Decision::on(&request, || webhook.admit(&request));
            decision.log(&request);
            if let Decision::Pod(Admission::Denied { reason, .. }) = &decision {
                webhook.metrics.count_refusal(reason);
            }
            let answer = Json(review::answer(&request.uid, decision.verdict()));
            (decision.outcome(), answer.into_response())
        }
        Err(error) => {
            tracing::warn!(%error, "bad question");
            (Outcome::Error, (StatusCode::BAD_REQUEST, error.to_string()).into_response())
        }
    };
    webhook.metrics.count(outcome, started.elapsed());
    response
}

impl Webhook {
    /// Decides on a pod by what is free once those are served who were admitted before it. Of other replicas' admissions the
    /// last are a guess: it keeps a pod from a kind that may be full, and sends none to wait.
    fn admit(&self, request: &Request) -> Admission {
        let policies = self.policy.current();
        let mut tries = 0;
        loop {
            let now = Instant::now();
            let seen = self.supply.current(now);
            let admit = |supply| {
                admit_by(self.supply.replica(), &request.object, &request.namespace, &policies, supply)
            };
            let guess = seen.less.as_ref().map(admit).filter(|admission| !admission.waits());
            let admission = guess.unwrap_or_else(|| admit(&seen.supply));
            let counts = !request.dry_run.unwrap_or(false);
            tries += 1;
            match &admission {
                Admission::Patched { document, .. } if counts => {
                    if self.supply.admit(document, &seen, now) || tries == MOST_TRIES {
                        return admission;
                    }
                }
                // Who was admitted before is counted already.
                _ => return admission,
            }
        }
    }
}

#[cfg(test)]
mod tests;
