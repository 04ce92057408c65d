//! A substitute for the API server in tests: a client whose requests a function answers.

use axum::http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use std::sync::Arc;

/// One request that the code under test has sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The HTTP method, as `GET` or `PATCH`.
    pub method: String,
    /// The path of the URL, without the query.
    pub path: String,
    /// The query of the URL, without the question mark.
    pub query: String,
    /// The JSON body; null if there was none.
    pub body: Value,
}

/// A function returns this code to leave the request unanswered for ever.
pub const NO_ANSWER: u16 = 0;

/// Builds a client whose requests `answer` answers with a status code and a body.
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

/// A failed response with this code. It also has the reason, because clients read both.
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
