//! Authenticates agents: the API server reviews an agent's token, and the token's pod names its node.

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use futures::TryFutureExt;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo};
use kerf_core::names::NodeName;
use kerf_protocol::limits::ROLE_TIMEOUT;
use kerf_protocol::server::{Caller, Denied};
use kerf_runtime::args::NamespacedName;
use kube::Api;
use kube::api::PostParams;
use rustls::ServerConfig;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// The audience that an agent's token must have.
const AUDIENCE: &str = "kerf-extender";
/// The key in a user's `extra` under which the API server names the node of the token's pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// How many reviews run at once.
const REVIEWS: usize = 32;
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest interval between two warnings about refusals.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub enum Access {
    /// Over TLS with this certificate, by tokens.
    Reviewed(Arc<ServerConfig>, Box<Reviewer>),
    /// Without TLS and without tokens. For benchmarks on loopback.
    Open,
}

impl Access {
    /// The TLS configuration of the server, or `None` if it serves without TLS.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        match self {
            Self::Reviewed(tls, _) => Some(Arc::clone(tls)),
            Self::Open => None,
        }
    }

    /// Authenticates the agent that has sent these headers.
    pub(super) async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Denied> {
        match self {
            Self::Reviewed(_, reviewer) => {
                reviewer.node(headers).await.map(Caller::Node).map_err(|refusal| {
                    reviewer.log(&refusal);
                    refusal.denied()
                })
            }
            Self::Open => Ok(Caller::Anyone),
        }
    }
}

#[derive(Debug)]
pub struct Reviewer {
    api: Api<TokenReview>,
    /// The user name of the agents' service account.
    username: String,
    places: Semaphore,
    /// When the last warning about a refusal was logged.
    logged: Mutex<Option<Instant>>,
}

#[derive(Debug, Error)]
enum Refusal {
    #[error("no token was sent")]
    NoToken,
    #[error("the token is not valid for the audience {AUDIENCE}: {0}")]
    Invalid(String),
    #[error("the token is of {0}; agents are {1}")]
    OtherAccount(String, String),
    #[error(
        "the token names no node; it must be of a pod, and the API server must name its node (Kubernetes 1.30 and later do)"
    )]
    NoNode,
    #[error("failed to review the token")]
    Failed(#[source] kube::Error),
    #[error("the token was not reviewed in time")]
    Late,
}

impl Refusal {
    /// The answer to the agent. It reveals nothing about the token, because a stranger may read it.
    fn denied(&self) -> Denied {
        let status = match self {
            Self::NoToken | Self::Invalid(_) => StatusCode::UNAUTHORIZED,
            Self::OtherAccount(..) | Self::NoNode => StatusCode::FORBIDDEN,
            Self::Failed(_) | Self::Late => StatusCode::SERVICE_UNAVAILABLE,
        };
        match self {
            Self::Invalid(_) => {
                Denied::new(status, format!("the token is not valid for the audience {AUDIENCE}"))
            }
            refusal => Denied::new(status, refusal.to_string()),
        }
    }
}

impl Reviewer {
    /// Accepts agents of this service account. `client` must outlive terms, because followers accept agents too.
    #[must_use]
    pub fn new(client: kube::Client, account: &NamespacedName) -> Self {
        Self {
            api: Api::all(client),
            username: format!("system:serviceaccount:{}:{}", account.namespace, account.name),
            places: Semaphore::new(REVIEWS),
            logged: Mutex::default(),
        }
    }

    /// The node of the agent that has sent these headers.
    async fn node(&self, headers: &HeaderMap) -> Result<NodeName, Refusal> {
        let token = bearer(headers).ok_or(Refusal::NoToken)?;
        let reviewed = async {
            // The semaphore is never closed, so `acquire` cannot fail.
            let _place = self.places.acquire().await;
            timeout(REVIEW_TIMEOUT, self.review(token)).await.unwrap_or(Err(Refusal::Late))
        };
        // The agent does not wait longer than this for the server's role, so a later answer would be useless.
        let status = timeout(ROLE_TIMEOUT, reviewed).await.unwrap_or(Err(Refusal::Late))?;
        self.node_of(status)
    }

    /// Logs a refusal as a warning, at most once per [`LOG_INTERVAL`]. Strangers can dial as often as they like, and
    /// must not fill the log.
    fn log(&self, refusal: &Refusal) {
        // Nothing panics while it holds the lock.
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let error = kerf_runtime::telemetry::chain(refusal);
        if logged.is_some_and(|logged| logged.elapsed() < LOG_INTERVAL) {
            return tracing::debug!(error, "refused an agent");
        }
        *logged = Some(Instant::now());
        tracing::warn!(error, "refused an agent");
    }

    async fn review(&self, token: &str) -> Result<TokenReviewStatus, Refusal> {
        let spec =
            TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let post = PostParams::default();
        let answer = self.api.create(&post, &review).map_err(Refusal::Failed).await?;
        Ok(answer.status.unwrap_or_default())
    }

    fn node_of(&self, status: TokenReviewStatus) -> Result<NodeName, Refusal> {
        // An API server whose authenticator ignores audiences returns none. Its answer must not admit an agent, because
        // the token may be for another service.
        let is_for_us = status.audiences.unwrap_or_default().iter().any(|audience| audience == AUDIENCE);
        if status.authenticated != Some(true) || !is_for_us {
            return Err(Refusal::Invalid(status.error.unwrap_or_default()));
        }
        let UserInfo { username, extra, .. } = status.user.unwrap_or_default();
        let username = username.unwrap_or_default();
        if username != self.username {
            return Err(Refusal::OtherAccount(username, self.username.clone()));
        }
        match extra.unwrap_or_default().remove(NODE_NAME).unwrap_or_default().as_slice() {
            [node] if !node.is_empty() => Ok(NodeName::new(node)),
            _ => Err(Refusal::NoNode),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
#[path = "review_tests.rs"]
mod tests;
