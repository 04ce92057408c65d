//! A stand-in for the API server in tests: it answers by a function, and keeps what was asked.

use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

/// What was asked so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Asked>>>);

impl Log {
    pub(crate) fn all(&self) -> Vec<Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A client of an API server that answers with a code and a body.
pub(crate) fn client(answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) -> (kube::Client, Log) {
    let (log, answer) = (Log::default(), Arc::new(answer));
    let kept = log.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (kept, answer) = (kept.clone(), Arc::clone(&answer));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let asked = Asked {
                method: head.method.to_string(),
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            };
            let (code, answer) = answer(&asked);
            kept.0.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
            let body = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    (kube::Client::new(service, "default"), log)
}

/// A refusal with this code.
pub(crate) fn refusal(code: u16) -> (u16, Value) {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        429 => "TooManyRequests",
        _ => "Unknown",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "on order", "reason": reason, "code": code,
    });
    (code, status)
}
