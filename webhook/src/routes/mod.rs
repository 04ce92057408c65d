//! HTTP: one question, one answer and one log line. `decision` makes the answer.

use crate::admission::Admission;
use crate::decision;
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
            let admission = webhook.decide(&request).await;
            decision::log(&request, &admission);
            if let Admission::Denied { reason, .. } = &admission {
                webhook.metrics.count_refusal(reason);
            }
            let answer = Json(review::answer(&request.uid, &admission));
            (admission.outcome(), admission.kind(), answer.into_response())
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
    /// Decides on a request by the present policies and supply. It waits only for the labels of a pod's namespace, so
    /// that an admission needs no call of the API server.
    async fn decide(&self, request: &Request) -> Admission {
        let labels = if request.creates_pod() && self.policy.current().read_namespace_labels() {
            self.namespaces.labels(&request.namespace).await
        } else {
            None
        };
        let namespace = Namespace { name: &request.namespace, labels: labels.as_deref() };
        decision::decide(request, namespace, &self.policy.current(), &self.supply.current())
    }
}

#[cfg(test)]
mod tests;
