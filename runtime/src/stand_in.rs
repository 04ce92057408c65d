//! A stand-in for the API server in tests: a client whose requests a function answers.

use axum::http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::Arc;

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// `GET` and the like.
    pub method: String,
    /// Where to.
    pub path: String,
    /// What follows the path.
    pub query: String,
    /// What was sent; null if nothing was.
    pub body: Value,
}

/// The code of a request that is never answered.
pub const NO_ANSWER: u16 = 0;

/// A client of an API server that answers with a code and a body.
pub fn client(answer: impl Fn(Asked) -> (u16, Value) + Send + Sync + 'static) -> kube::Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = Arc::clone(&answer);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let (code, answer) = answer(Asked {
                method: head.method.to_string(),
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            });
            if code == NO_ANSWER {
                std::future::pending::<()>().await;
            }
            let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Ok::<_, kube::Error>(response)
        }
    });
    kube::Client::new(service, "default")
}

/// A refusal with this code. Clients go by the reason as well as by the code.
#[must_use]
pub fn refusal(code: u16, message: &str) -> (u16, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        429 => "TooManyRequests",
        _ => "Unknown",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason,
        "code": code,
    });
    (code, status)
}
