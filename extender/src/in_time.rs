//! Requests to the API server that must be answered in time.

use std::time::Duration;
use thiserror::Error;
use tokio::time::timeout;

/// Why something was not read or written.
#[derive(Debug, Error)]
pub enum Unanswered {
    /// The API server refuses it, or cannot be reached.
    #[error("{0}")]
    Api(#[from] kube::Error),
    /// What it answers is something else.
    #[error("the object cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// It does not answer.
    #[error("the API server does not answer in time")]
    Late(#[from] tokio::time::error::Elapsed),
}

/// What a request is answered with, waited for no longer than `patience`.
///
/// # Errors
/// When it is refused, or there is no answer so long.
pub async fn in_time<T>(
    patience: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Unanswered> {
    Ok(timeout(patience, request).await??)
}
