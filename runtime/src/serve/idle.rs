//! Ends connections without an open request, so that no client can occupy the server with many of them.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

/// Limits for connections without an open request; a handshake counts as such. A connection beyond the limits is ended at once.
#[derive(Debug, Clone, Copy)]
pub struct IdleLimits {
    /// The number of connections that may be idle at once.
    pub connections: usize,
    /// A connection that is idle for longer than this is ended.
    pub timeout: Duration,
}

/// The places for idle connections of a listener.
#[derive(Debug, Clone)]
pub(super) struct IdleConnections {
    places: Arc<Semaphore>,
    timeout: Duration,
}

impl IdleConnections {
    pub fn new(limits: IdleLimits) -> Self {
        Self { places: Arc::new(Semaphore::new(limits.connections)), timeout: limits.timeout }
    }

    /// Returns once the connection with these requests must end. The result is the time of its last response, or `None` if it had no
    /// request.
    pub async fn over(&self, requests: &Requests) -> Option<Instant> {
        let mut open = requests.0.subscribe();
        let mut last_answer = None;
        loop {
            let Ok(place) = self.places.try_acquire() else { return last_answer };
            if !matches!(timeout(self.timeout, open.wait_for(|open| *open > 0)).await, Ok(Ok(_))) {
                return last_answer;
            }
            drop(place);
            // This cannot fail, because `requests` owns the sender.
            let _ = open.wait_for(|open| *open == 0).await;
            last_answer = Some(Instant::now());
        }
    }
}

/// The number of a connection's open requests; a request is open until its response is sent whole.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests(Arc<watch::Sender<usize>>);

impl Requests {
    /// Adds a layer to `router` that counts its requests here.
    pub fn counted(&self, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(self.clone(), count))
    }
}

async fn count(State(requests): State<Requests>, request: Request, next: Next) -> Response {
    let open = Open::new(requests);
    let response = next.run(request).await;
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // The closure owns the count, so that the request stays open until the body is sent.
            let _open = &open;
            frame
        }))
    })
}

struct Open(Requests);

impl Open {
    fn new(requests: Requests) -> Self {
        requests.0.send_modify(|open| *open += 1);
        Self(requests)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}
