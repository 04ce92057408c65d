//! Percentiles of measured durations by nearest rank.

use std::time::Duration;

/// The value that `percent` percent of the sorted values do not exceed (nearest rank); `None` without values.
#[must_use]
pub fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied()
}
