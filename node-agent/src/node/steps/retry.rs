//! Decides when a failed step is tried again, and when it has failed for good.

use crate::gpu::GpuError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The interval after a first failure. It doubles with each further one, up to [`LONGEST_INTERVAL`].
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);

/// How often a step is tried that NVML refuses.
const TRIES_LIMIT: u32 = 3;

/// How often a step is tried while something holds what it changes: with waits of about 16 s in all.
const BUSY_TRIES_LIMIT: u32 = 9;

/// How long a slice may have no legal step before that counts as a failure. Meanwhile steps of neighbours and a newer
/// list of holders may make one possible.
pub(super) const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
struct Failure {
    tries: u32,
    at: Instant,
    next: Instant,
    error: GpuError,
}

#[derive(Debug)]
pub(in crate::node) struct Retries<K> {
    failures: BTreeMap<K, Failure>,
    /// When each unreachable key counts as failed.
    unreachable: BTreeMap<K, Instant>,
}

impl<K> Default for Retries<K> {
    fn default() -> Self {
        Self { failures: BTreeMap::new(), unreachable: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Retries<K> {
    pub(in crate::node) fn failed(&mut self, key: K, error: GpuError, now: Instant) {
        let failure = self.failures.entry(key).or_insert(Failure {
            tries: 0,
            at: now,
            next: now,
            error: error.clone(),
        });
        let wait = FIRST_INTERVAL * 2_u32.saturating_pow(failure.tries.min(10));
        let tries = failure.tries.saturating_add(1);
        *failure = Failure { tries, at: now, next: now + wait.min(LONGEST_INTERVAL), error };
    }

    pub(in crate::node) fn succeeded(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub(in crate::node) fn is_final(&self, key: &K) -> bool {
        self.failures.get(key).is_some_and(Failure::is_final)
    }

    pub(in crate::node) fn may_run(&self, key: &K, now: Instant) -> bool {
        self.failures.get(key).is_none_or(|f| f.next <= now && !f.is_final())
    }

    /// Whether a step that has failed for good may be tried once more, because its last try is long ago.
    pub(in crate::node) fn may_run_again(&self, key: &K, after: Duration, now: Instant) -> bool {
        self.failures.get(key).is_some_and(|f| f.is_final() && f.at + after <= now)
    }

    /// The errors of the steps that have failed for good.
    pub(in crate::node) fn last_errors(&self) -> impl Iterator<Item = (&K, &GpuError)> {
        self.failures.iter().filter(|(_, f)| f.is_final()).map(|(key, f)| (key, &f.error))
    }

    /// When the next step may be tried again.
    pub(in crate::node) fn next(&self, now: Instant) -> Option<Instant> {
        let retries = self.failures.values().filter(|f| !f.is_final()).map(|f| f.next);
        retries.chain(self.unreachable.values().copied()).filter(|next| *next > now).min()
    }

    /// The last error of a step, and whether the step has failed for good.
    pub(in crate::node) fn error(&self, key: &K) -> Option<(&GpuError, bool)> {
        self.failures.get(key).map(|f| (&f.error, f.is_final()))
    }

    /// Records which keys have no legal step now. Returns those for which this has lasted longer than `timeout`.
    pub(in crate::node) fn unreachable(&mut self, keys: &[K], timeout: Duration, now: Instant) -> Vec<K> {
        self.unreachable.retain(|key, _| keys.contains(key));
        for key in keys {
            self.unreachable.entry(key.clone()).or_insert(now + timeout);
        }
        let overdue = self.unreachable.iter().filter(|(_, due)| now >= **due);
        overdue.map(|(key, _)| key.clone()).collect()
    }

    /// Drops the failures of steps that are no longer desired.
    pub(in crate::node) fn retain(&mut self, wanted: impl Fn(&K) -> bool) {
        self.failures.retain(|key, _| wanted(key));
    }
}

impl Failure {
    fn is_final(&self) -> bool {
        // A busy GPU may become free by itself, so it is worth more tries than a refusal.
        self.tries >= if self.error.is_busy() { BUSY_TRIES_LIMIT } else { TRIES_LIMIT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::NvmlCode;

    fn refused() -> GpuError {
        GpuError::Call { call: "nvmlX", code: NvmlCode::InsufficientResources }
    }

    #[test]
    fn a_refused_step_is_tried_three_times_with_longer_waits() {
        let (mut retries, start) = (Retries::default(), Instant::now());
        retries.failed("s1", refused(), start);
        assert!(!retries.may_run(&"s1", start) && retries.may_run(&"s1", start + FIRST_INTERVAL));
        retries.failed("s1", refused(), start);
        assert_eq!(retries.next(start), Some(start + FIRST_INTERVAL * 2));
        retries.failed("s1", refused(), start);
        assert!(!retries.may_run(&"s1", start + LONGEST_INTERVAL));
        assert_eq!(retries.error(&"s1"), Some((&refused(), true)));
    }

    #[test]
    fn a_step_that_has_failed_for_good_may_be_tried_again_after_a_while() {
        let (mut retries, start, a_while) = (Retries::default(), Instant::now(), Duration::from_mins(1));
        for _ in 0..TRIES_LIMIT {
            assert!(
                !retries.may_run_again(&"s1", a_while, start + a_while * 9),
                "it has not failed for good"
            );
            retries.failed("s1", refused(), start);
        }
        assert!(!retries.may_run_again(&"s1", a_while, start));
        assert!(retries.may_run_again(&"s1", a_while, start + a_while));
        retries.failed("s1", refused(), start + a_while);
        assert!(!retries.may_run_again(&"s1", a_while, start + a_while));
        assert_eq!(retries.last_errors().collect::<Vec<_>>(), [(&"s1", &refused())]);
    }

    #[test]
    fn a_step_on_a_busy_gpu_is_tried_more_often() {
        let (mut retries, start) = (Retries::default(), Instant::now());
        for _ in 1..BUSY_TRIES_LIMIT {
            retries.failed("s1", GpuError::Busy(kerf_nvml::Holders::default()), start);
            assert!(retries.may_run(&"s1", start + LONGEST_INTERVAL));
        }
        retries.failed("s1", GpuError::Busy(kerf_nvml::Holders::default()), start);
        assert!(!retries.may_run(&"s1", start + LONGEST_INTERVAL));
    }

    #[test]
    fn an_unreachable_slice_fails_after_a_timeout_unless_it_becomes_reachable() {
        let (mut retries, start) = (Retries::default(), Instant::now());
        assert!(retries.unreachable(&["s1"], UNREACHABLE_TIMEOUT, start).is_empty());
        assert_eq!(retries.next(start), Some(start + UNREACHABLE_TIMEOUT));
        assert!(retries.unreachable(&[], UNREACHABLE_TIMEOUT, start + UNREACHABLE_TIMEOUT / 2).is_empty());
        assert!(retries.unreachable(&["s1"], UNREACHABLE_TIMEOUT, start + UNREACHABLE_TIMEOUT).is_empty());
        assert_eq!(
            retries.unreachable(&["s1"], UNREACHABLE_TIMEOUT, start + UNREACHABLE_TIMEOUT * 2),
            ["s1"]
        );
    }
}
