//! `/livez`, `/readyz` and `/metrics` in plain HTTP. They report the program's state and change nothing.

use crate::exposition::Form;
use crate::listener;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::{Router, routing::get};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

/// The conditions under which a program may get work. Clones share them.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, bool>>>);

impl Readiness {
    /// Starts with these conditions, all of them false.
    #[must_use]
    pub fn new(conditions: &[&'static str]) -> Self {
        Self(Arc::new(Mutex::new(conditions.iter().map(|name| (*name, false)).collect())))
    }

    /// Sets a condition, and adds it if it is new. `/readyz` reports every condition that is false.
    pub fn set(&self, condition: &'static str, holds: bool) {
        let before = self.conditions().insert(condition, holds);
        if before != Some(holds) {
            tracing::debug!(condition, holds, "readiness");
        }
    }

    /// Whether all conditions are true; `/readyz` then answers 200.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.missing().is_empty()
    }

    /// The conditions that are false, in order of their names.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        self.conditions().iter().filter(|(_, holds)| !**holds).map(|(name, _)| *name).collect()
    }

    fn conditions(&self) -> MutexGuard<'_, BTreeMap<&'static str, bool>> {
        // No code panics while it holds the lock, and a map of flags cannot be left half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves `/livez`, `/readyz` (503 and the missing conditions while not ready) and `/metrics` until `stop`.
pub async fn serve(
    address: SocketAddr,
    readiness: Readiness,
    mut registry: Registry,
    stop: CancellationToken,
) -> std::io::Result<()> {
    register_build(&mut registry);
    let listener = listener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving /livez, /readyz and /metrics");
    axum::serve(listener, routes(readiness, Arc::new(registry)))
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

fn register_build(registry: &mut Registry) {
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("kerf_build", "The version of kerf; always 1", version);
}

fn routes(readiness: Readiness, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(metrics).with_state(registry))
}

async fn ready(State(readiness): State<Readiness>) -> (StatusCode, String) {
    match readiness.missing().as_slice() {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        missing => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", missing.join(", "))),
    }
}

/// The metrics in the format that the scraper prefers.
async fn metrics(State(registry): State<Arc<Registry>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let form = Form::accepted(accept.unwrap_or_default());
    match form.write(&registry) {
        Ok(body) => (StatusCode::OK, [(header::CONTENT_TYPE, form.content_type())], body),
        Err(error) => {
            let content = [(header::CONTENT_TYPE, "text/plain")];
            (StatusCode::INTERNAL_SERVER_ERROR, content, format!("{error}\n").into_bytes())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use prometheus_client::metrics::counter::Counter;
    use tower::ServiceExt;

    async fn get_text(routes: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = routes.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_program_is_ready_when_every_condition_holds() {
        let readiness = Readiness::new(&["policy", "leader"]);
        let routes = routes(readiness.clone(), Arc::new(Registry::default()));
        readiness.set("policy", true);
        assert_eq!(
            get_text(&routes, "/readyz").await,
            (StatusCode::SERVICE_UNAVAILABLE, "waiting for leader\n".into())
        );
        assert_eq!(get_text(&routes, "/livez").await.0, StatusCode::OK);
        readiness.set("leader", true);
        assert_eq!(get_text(&routes, "/readyz").await.0, StatusCode::OK);
        readiness.set("policy", false);
        assert!(!readiness.is_ready());
    }

    #[tokio::test]
    async fn metrics_are_written_as_open_metrics() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("kerf_cuts", "Cuts", counter.clone());
        register_build(&mut registry);
        counter.inc();
        let (status, text) = get_text(&routes(Readiness::new(&[]), Arc::new(registry)), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("kerf_cuts_total 1") && text.ends_with("# EOF\n"), "{text}");
        assert!(text.contains("kerf_build_info{version=\"0."), "{text}");
    }

    #[tokio::test]
    async fn a_scraper_that_prefers_protobuf_gets_the_same_metrics() {
        use prometheus_client::encoding::prometheus_protobuf::encode_to_vec;
        let build = |registry: &mut Registry| register_build(registry);
        let (mut served, mut expected) = (Registry::default(), Registry::default());
        build(&mut served);
        build(&mut expected);
        let accept = Form::Protobuf.content_type();
        let request = Request::get("/metrics").header(header::ACCEPT, accept).body(Body::empty()).unwrap();
        let routes = routes(Readiness::new(&[]), Arc::new(served));
        let response = routes.oneshot(request).await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], accept);
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        assert_eq!(body, encode_to_vec(&expected).unwrap());
    }
}
