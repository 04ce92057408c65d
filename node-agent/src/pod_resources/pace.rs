//! Rate limits for calls to the kubelet: a burst, then a fixed number a second.
//!
//! Acknowledgements have their own limit: pods wait for them, and must not queue behind requests for holders.

use crate::kubelet_api::{POD_RESOURCES_BURST, POD_RESOURCES_QPS};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Parts of the rate that the kubelet allows all callers together. The rest is for others, such as monitoring.
const FOR_ACKNOWLEDGEMENTS: f64 = 0.5;
const FOR_HOLDERS: f64 = 0.3;

/// A rate limit with a token bucket.
#[derive(Debug)]
pub struct Pace {
    part: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Pace {
    #[must_use]
    pub fn for_acknowledgements() -> Self {
        Self::with_part(FOR_ACKNOWLEDGEMENTS)
    }

    #[must_use]
    pub fn for_holders() -> Self {
        Self::with_part(FOR_HOLDERS)
    }

    fn with_part(part: f64) -> Self {
        let tokens = f64::from(POD_RESOURCES_BURST) * part;
        Self { part, bucket: Mutex::new(Bucket { tokens, filled: Instant::now() }) }
    }

    /// Waits until a call is allowed.
    pub async fn allow(&self) {
        let wait = self.take(Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Empties the bucket, because the kubelet has refused a call for its rate.
    pub fn exhausted(&self) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.tokens = bucket.tokens.min(0.0);
    }

    /// Takes a token, on credit if needed, and returns how long to wait for it.
    fn take(&self, now: Instant) -> Duration {
        let rate = f64::from(POD_RESOURCES_QPS) * self.part;
        let burst = f64::from(POD_RESOURCES_BURST) * self.part;
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let grown = now.saturating_duration_since(bucket.filled).as_secs_f64() * rate;
        bucket.tokens = (bucket.tokens + grown).min(burst) - 1.0;
        bucket.filled = now;
        Duration::from_secs_f64((-bucket.tokens / rate).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_then_calls_are_spaced() {
        let (pace, now) = (Pace::for_acknowledgements(), Instant::now());
        let waits: Vec<_> = (0..7).map(|_| pace.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 20, 40]);
        assert_eq!(pace.take(now + Duration::from_secs(1)).as_millis(), 0);
    }
}
