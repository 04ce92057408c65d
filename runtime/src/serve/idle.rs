//! Ends connections that have no request open, where a stranger could keep many of them.

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

/// How many connections may have no request open, handshakes included, and how long one may have none. What is beyond is ended at once.
#[derive(Debug, Clone, Copy)]
pub struct IdleLimits {
    /// Connections that may be idle at once.
    pub connections: usize,
    /// How long a connection may be idle before it is ended.
    pub timeout: Duration,
}

/// The idle connections of a listener.
#[derive(Debug, Clone)]
pub(super) struct IdleConnections {
    places: Arc<Semaphore>,
    timeout: Duration,
}

impl IdleConnections {
    pub fn new(limits: IdleLimits) -> Self {
        Self { places: Arc::new(Semaphore::new(limits.connections)), timeout: limits.timeout }
    }

    /// Returns once a connection with these requests is to be ended; when the last of them was answered, if there was one.
    pub async fn over(&self, requests: &Requests) -> Option<Instant> {
        let mut open = requests.0.subscribe();
        let mut last_answer = None;
        loop {
            let Ok(place) = self.places.try_acquire() else { return last_answer };
            if !matches!(timeout(self.timeout, open.wait_for(|open| *open > 0)).await, Ok(Ok(_))) {
                return last_answer;
            }
            drop(place);
            // It fails for none: the sender is here.
            let _ = open.wait_for(|open| *open == 0).await;
            last_answer = Some(Instant::now());
        }
    }
}

/// The open requests of a connection: those whose answer was not sent whole.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests(Arc<watch::Sender<usize>>);

impl Requests {
    /// `router`, whose requests are counted here.
    pub fn counted(&self, router: Router) -> Router {
        router.layer(middleware::from_fn_with_state(self.clone(), count))
    }
}

async fn count(State(requests): State<Requests>, request: Request, next: Next) -> Response {
    let open = Open::new(requests);
    let response = next.run(request).await;
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // As long as the answer is being sent.
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
