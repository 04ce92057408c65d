//! Ends explorations after a time, or once one has found a violation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The end of an exploration: a time, or another exploration's find.
#[derive(Debug, Clone, Copy)]
pub struct Until<'a> {
    time: Instant,
    found: &'a AtomicBool,
}

impl<'a> Until<'a> {
    pub fn new(rest: Duration, found: &'a AtomicBool) -> Self {
        Self { time: Instant::now() + rest, found }
    }

    pub fn is_over(self) -> bool {
        Instant::now() >= self.time || self.found.load(Ordering::Relaxed)
    }

    pub fn end_all(self) {
        self.found.store(true, Ordering::Relaxed);
    }
}
