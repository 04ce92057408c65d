//! HTTP: one question in, one answer out, one log line. What the answer is, is decided in `admit`.

use crate::admit::{Admission, admit};
use crate::metrics::{Metrics, Outcome};
use crate::review::{self, Request};
use crate::supply_watch::LiveSupply;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::post};
use bytes::Bytes;
use kerf_runtime::policy_file::PolicyStore;
use std::time::Instant;

/// The largest question. An object has at most 1.5 MiB in etcd and comes as JSON, in an update twice.
const LARGEST_BODY: usize = 8 << 20;

/// What answers are made from.
#[derive(Debug, Clone)]
pub(crate) struct Webhook {
    /// The policy in force.
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
            let admission = webhook.decide(&request);
            log(&request, &admission);
            let json = [(header::CONTENT_TYPE, "application/json")];
            (outcome(&admission), (json, review::answer(&request.uid, &admission)).into_response())
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
    fn decide(&self, request: &Request) -> Admission {
        if request.creates_pod() {
            admit(&request.object, &self.policy.current(), &self.supply.current())
        } else {
            Admission::Untouched
        }
    }
}

fn outcome(admission: &Admission) -> Outcome {
    match admission {
        Admission::Untouched => Outcome::Untouched,
        Admission::Patched { .. } => Outcome::Patched,
        Admission::Denied { .. } => Outcome::Denied,
    }
}

fn log(request: &Request, admission: &Admission) {
    let (namespace, pod, outcome) = (&request.namespace, request.pod_name(), outcome(admission).as_str());
    let dry_run = request.dry_run.unwrap_or(false);
    match admission {
        Admission::Untouched => tracing::info!(namespace, pod, dry_run, outcome, "pod"),
        Admission::Patched { warnings, document, .. } => {
            let requests =
                document.containers.iter().map(|c| format!("{}: {}x {}", c.name, c.count, c.resource));
            let resources = requests.collect::<Vec<_>>().join(", ");
            tracing::info!(
                namespace,
                pod,
                dry_run,
                outcome,
                resources,
                warnings = warnings.join("; "),
                "pod"
            );
        }
        Admission::Denied { message: reason } => {
            tracing::info!(namespace, pod, dry_run, outcome, reason, "pod");
        }
    }
}

#[cfg(test)]
mod tests;
