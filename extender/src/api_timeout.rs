//! Requests to the API server with a timeout.

use std::time::Duration;
use thiserror::Error;

/// Why a read or write failed.
#[derive(Debug, Error)]
pub enum ApiFailure {
    /// The API server refuses the request, or cannot be reached.
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("the object cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the API server does not answer in time")]
    Late(#[from] tokio::time::error::Elapsed),
}

impl ApiFailure {
    /// Whether a retry may succeed: the API server was not reached, or it is not well.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Json(_) => false,
            Self::Api(kube::Error::Api(status)) => status.code == 429 || status.code >= 500,
            Self::Api(_) | Self::Late(_) => true,
        }
    }

    /// Whether the write may have been made despite the error. That includes a conflict, because the conflicting write
    /// may be an earlier attempt of the same write.
    #[must_use]
    pub fn may_be_done(&self) -> bool {
        let is_conflict = matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409);
        is_conflict || self.may_pass() || matches!(self, Self::Json(_))
    }
}

/// Awaits the answer to a request. Waits no longer than `timeout`.
///
/// # Errors
/// If the request is refused, or there is no answer within that time.
pub async fn with_timeout<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiFailure> {
    Ok(tokio::time::timeout(timeout, request).await??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_overload_and_server_errors_may_pass() {
        for (code, may_pass, may_be_done) in [
            (403, false, false),
            (404, false, false),
            (409, false, true),
            (429, true, true),
            (500, true, true),
            (503, true, true),
        ] {
            let status = json!({"code": code, "status": "Failure", "message": "", "reason": ""});
            let error = ApiFailure::Api(kube::Error::Api(serde_json::from_value(status).unwrap()));
            assert_eq!((error.may_pass(), error.may_be_done()), (may_pass, may_be_done), "{code}");
        }
        assert!(!ApiFailure::from(serde_json::from_str::<u8>("x").unwrap_err()).may_pass());
    }
}
