//! Percentiles of what was measured.

use std::time::Duration;

/// The value that so many percent do not exceed, of values that are sorted (nearest rank); `None` of none.
#[must_use]
pub fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied()
}
