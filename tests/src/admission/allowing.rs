//! A webhook that allows everything. It shows what TLS, HTTP and parsing a review cost without a
//! decision.

use std::net::SocketAddr;

use anyhow::Context as _;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use kerf_runtime::serve;
use kerf_runtime::tls::{Clients, Material, server_config};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The same limit as in kerf's webhook, so that both read the same bodies.
const LARGEST_BODY: usize = 8 << 20;

/// The webhook, on a thread with its own runtime, so that it shares no executor with the load. Dropping it
/// stops it.
pub struct AllowingWebhook {
    address: SocketAddr,
    _stop: DropGuard,
}

impl AllowingWebhook {
    /// Serves `POST /mutate` on a free loopback port, with kerf's own accept loop and TLS.
    pub fn start(material: &Material) -> anyhow::Result<Self> {
        let tls = server_config(material, Clients::Any)?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serving = async move {
            let router =
                Router::new().route("/mutate", post(allow).layer(DefaultBodyLimit::max(LARGEST_BODY)));
            let served = serve::serve(TcpListener::from_std(listener)?, tls, router, stopped).await;
            served.context("the allowing webhook ended")
        };
        std::thread::Builder::new().name("allowing-webhook".to_owned()).spawn(move || {
            if let Err(error) = runtime.block_on(serving) {
                tracing::error!(%error);
            }
        })?;
        Ok(Self { address, _stop: stop.drop_guard() })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[derive(Deserialize)]
struct Review<'a> {
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(Deserialize)]
struct Request<'a> {
    uid: &'a str,
}

async fn allow(body: axum::body::Bytes) -> Response {
    let Ok(Review { request: Request { uid } }) = serde_json::from_slice(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let answer = serde_json::json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": true},
    });
    ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
}
