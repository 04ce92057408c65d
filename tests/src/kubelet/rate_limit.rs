//! The kubelet's rate limit of pod-resources: one token bucket for all callers and all methods.

use std::sync::Mutex;
use std::time::Instant;

use kerf_node_agent::kubelet_api::{POD_RESOURCES_BURST, POD_RESOURCES_QPS};
use tonic::Status;

use super::devices::locked;

#[derive(Debug)]
pub struct RateLimit {
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl RateLimit {
    /// A bucket that is full at `now`.
    #[must_use]
    pub fn full(now: Instant) -> Self {
        Self { bucket: Mutex::new(Bucket { tokens: f64::from(POD_RESOURCES_BURST), filled: now }) }
    }

    /// Takes a token, or returns the kubelet's error.
    pub fn take(&self, now: Instant) -> Result<(), Status> {
        let mut bucket = locked(&self.bucket);
        let grown = now.saturating_duration_since(bucket.filled).as_secs_f64() * f64::from(POD_RESOURCES_QPS);
        bucket.tokens = (bucket.tokens + grown).min(f64::from(POD_RESOURCES_BURST));
        bucket.filled = now;
        if bucket.tokens < 1.0 {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }
}
