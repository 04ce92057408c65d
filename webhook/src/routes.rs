//! HTTP: one question in, one answer out, one log line. What the answer is, is a `Decision`.

use crate::admit::{Admission, admit_by};
use crate::decision::Decision;
use crate::metrics::{Metrics, Outcome};
use crate::namespaces::Namespaces;
use crate::patience::{Doubt, FOR_WORD, weigh};
use crate::review::{self, Request};
use crate::supply_watch::LiveSupply;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use bytes::Bytes;
use kerf_core::contract::Slices;
use kerf_core::policy::{Namespace, Supply};
use kerf_runtime::policy_file::PolicyStore;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use tokio::time::{self, sleep, timeout};

/// The largest question. An object has at most 1.5 MiB in etcd and comes as JSON, in an update twice.
const LARGEST_BODY: usize = 8 << 20;

/// How often a pod is decided on anew at once because another was admitted meanwhile: many may have waited for the same word.
/// Beyond it two may be sent to one free slice, and one of them waits.
const MOST_TRIES: u32 = 100;

/// How soon a pod is decided on anew at the earliest if nothing new is heard.
const LOOK: Duration = Duration::from_millis(50);

/// What answers are made from.
#[derive(Debug, Clone)]
pub(crate) struct Webhook {
    /// The policies in force.
    pub policy: PolicyStore,
    /// What the cluster can serve.
    pub supply: LiveSupply,
    /// The labels of namespaces, where policies ask for them.
    pub namespaces: Namespaces,
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
    let (outcome, kind, response) = match review::read(&body) {
        Ok(request) => {
            let decision = if request.creates_pod() {
                Decision::Pod(webhook.admit(&request).await)
            } else {
                Decision::on_template(&request)
            };
            decision.log(&request);
            if let Decision::Pod(Admission::Denied { reason, .. }) = &decision {
                webhook.metrics.count_refusal(reason);
            }
            let answer = Json(review::answer(&request.uid, decision.verdict()));
            (decision.outcome(), decision.kind(), answer.into_response())
        }
        Err(error) => {
            tracing::warn!(%error, "bad question");
            (Outcome::Error, None, (StatusCode::BAD_REQUEST, error.to_string()).into_response())
        }
    };
    webhook.metrics.count(outcome, kind, started.elapsed());
    response
}

impl Webhook {
    /// Decides on a pod by what is free once those are served who were admitted before it. Where more is known in a moment
    /// that may make it another decision, that is waited for (see [`weigh`]).
    async fn admit(&self, request: &Request) -> Admission {
        let labels = if self.policy.current().read_namespace_labels() {
            self.namespaces.labels(&request.namespace).await
        } else {
            None
        };
        let namespace = Namespace { name: &request.namespace, labels: labels.as_deref() };
        let began = time::Instant::now();
        let mut news = self.supply.news();
        let mut doubt: Option<Doubt> = None;
        loop {
            news.mark_unchanged();
            let why = match self.decide(request, namespace, began, doubt.as_ref().map(|doubt| &doubt.about)) {
                ControlFlow::Break(admission) => return admission,
                ControlFlow::Continue(why) => why,
            };
            // Many may wait: each is decided on again when it may be another decision, and not before.
            let left = FOR_WORD.saturating_sub(began.elapsed());
            if let Ok(Err(_)) = timeout(why.calm_in.min(left).max(LOOK), news.changed()).await {
                // Nobody will tell any more: the program ends. What is known must do.
                sleep(LOOK).await;
            }
            doubt = Some(why);
        }
    }

    /// Decides on a pod for which was asked at `began`, and counts it if the decision stands.
    fn decide(
        &self,
        request: &Request,
        namespace: Namespace<'_>,
        began: time::Instant,
        doubt: Option<&Slices<u32>>,
    ) -> ControlFlow<Admission, Doubt> {
        let policies = self.policy.current();
        let admit =
            |supply: &Supply| admit_by(self.supply.replica(), &request.object, namespace, &policies, supply);
        let counts = !request.dry_run.unwrap_or(false);
        let mut tries = 0;
        loop {
            let now = time::Instant::now().into_std();
            let seen = self.supply.current(now);
            let weighed = weigh(&seen, doubt, admit);
            if let Some(doubt) = weighed.doubt
                && began.elapsed() < FOR_WORD
            {
                return ControlFlow::Continue(doubt);
            }
            tries += 1;
            match &weighed.admission {
                // Who was admitted before is counted already.
                Admission::Patched { document, .. } if counts => {
                    if self.supply.admit(document, &seen, now) || tries == MOST_TRIES {
                        return ControlFlow::Break(weighed.admission);
                    }
                }
                _ => return ControlFlow::Break(weighed.admission),
            }
        }
    }
}

#[cfg(test)]
mod tests;
