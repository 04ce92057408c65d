//! When explorations end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A time, or once another exploration has found something.
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

    /// Ends all explorations.
    pub fn end_all(self) {
        self.found.store(true, Ordering::Relaxed);
    }
}
