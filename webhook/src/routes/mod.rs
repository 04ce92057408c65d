//! HTTP: one question, one answer and one log line. `Decision` makes the answer.

use crate::admit::{Admission, admit};
use crate::decision::Decision;
use crate::metrics::{Metrics, Outcome};
use crate::namespaces::Namespaces;
use crate::review::{self, Request};
use crate::supply_watch::LiveSupply;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use bytes::Bytes;
use kerf_core::kind::Kind;
use kerf_core::request::Namespace;
use kerf_runtime::policy_file::PolicyStore;
use std::time::Instant;

/// The largest question in bytes. An object has at most 1.5 MiB in etcd, but an update sends it twice, as JSON, which
/// is larger.
const LARGEST_BODY: usize = 8 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Webhook {
    pub policy: PolicyStore,
    pub supply: LiveSupply,
    pub namespaces: Namespaces,
    pub metrics: Metrics,
}

pub(crate) fn routes(webhook: Webhook) -> Router {
    let mutate = post(mutate).layer(DefaultBodyLimit::max(LARGEST_BODY));
    Router::new().route("/mutate", mutate).with_state(webhook)
}

async fn mutate(State(webhook): State<Webhook>, body: Bytes) -> Response {
    let started = Instant::now();
    let (outcome, kind, response) = match review::read(&body) {
        Ok(request) => {
            let decision = if request.creates_pod() {
                Decision::Pod(webhook.admit(&request).await)
            } else {
                Decision::for_template(&request)
            };
            decision.log(&request);
            if let Decision::Pod(Admission::Denied { reason, .. }) = &decision {
                webhook.metrics.count_refusal(reason);
            }
            let answer = Json(review::answer(&request.uid, decision.verdict()));
            (decision.outcome(), decision.kind(), answer.into_response())
        }
        Err(error) => {
            tracing::warn!(%error, "invalid AdmissionReview");
            (Outcome::Error, Kind::label(None), (StatusCode::BAD_REQUEST, error.to_string()).into_response())
        }
    };
    webhook.metrics.count(outcome, kind, started.elapsed());
    response
}

impl Webhook {
    /// Decides on a pod by the present policies and supply. It waits only for a namespace's labels, so that an
    /// admission needs no call of the API server.
    async fn admit(&self, request: &Request) -> Admission {
        let labels = if self.policy.current().read_namespace_labels() {
            self.namespaces.labels(&request.namespace).await
        } else {
            None
        };
        let namespace = Namespace { name: &request.namespace, labels: labels.as_deref() };
        admit(&request.object, namespace, &self.policy.current(), &self.supply.current())
    }
}

#[cfg(test)]
mod tests;
