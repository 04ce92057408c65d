//! A stand-in for the API server in tests: a function answers each request, and a log records them.

pub(crate) use kerf_runtime::stand_in::Asked;

use kerf_runtime::stand_in;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};

/// Requests so far, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Asked>>>);

impl Log {
    pub(crate) fn all(&self) -> Vec<Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Creates a client of an API server whose responses are a status code and a body.
pub(crate) fn client(answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) -> (kube::Client, Log) {
    let log = Log::default();
    let kept = log.clone();
    let client = stand_in::client(move |asked| {
        let answered = answer(&asked);
        kept.0.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
        answered
    });
    (client, log)
}

pub(crate) fn refusal(code: u16) -> (u16, Value) {
    stand_in::refusal(code, "on order")
}
