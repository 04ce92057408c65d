//! A wait for something in the cluster. Standard error shows its subject, its duration so far and its limit, so that a
//! user sees that the command is alive.

use anstream::{AutoStream, ColorChoice};
use kerf_runtime::duration::friendly;
use std::io::IsTerminal as _;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const CHECK_INTERVAL: Duration = Duration::from_millis(500);

const REPORT_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Wait {
    what: String,
    begun: Instant,
    limit: Duration,
    interval: Duration,
    reported: Option<Instant>,
    rewrites: bool,
}

impl Wait {
    /// Starts a wait. With a limit of zero the first check is the last.
    #[must_use]
    pub fn new(what: impl Into<String>, limit: Duration) -> Self {
        let stderr = std::io::stderr();
        let rewrites = stderr.is_terminal() && AutoStream::choice(&stderr) != ColorChoice::Never;
        let (begun, interval) = (Instant::now(), CHECK_INTERVAL);
        Self { what: what.into(), begun, limit, interval, reported: None, rewrites }
    }

    #[must_use]
    pub fn until(what: impl Into<String>, end: Instant) -> Self {
        Self::new(what, end.saturating_duration_since(Instant::now()))
    }

    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// For several waits at once: none overwrites the line of another.
    #[must_use]
    pub fn beside_others(mut self) -> Self {
        self.rewrites = false;
        self
    }

    pub fn rename(&mut self, what: String) {
        if self.what != what {
            (self.what, self.reported) = (what, None);
        }
    }

    /// Waits until the next check is due.
    ///
    /// # Errors
    /// `late`, once the limit has passed.
    pub async fn next_check<E>(&mut self, late: impl FnOnce() -> E) -> Result<(), E> {
        if self.begun.elapsed() >= self.limit {
            return Err(late());
        }
        self.report();
        sleep(self.interval).await;
        Ok(())
    }

    fn report(&mut self) {
        let is_due = self.reported.is_none_or(|last| last.elapsed() >= REPORT_INTERVAL);
        if self.rewrites {
            eprint!("\r{}\x1b[K", self.line());
        } else if is_due {
            eprintln!("{}", self.line());
        }
        if is_due {
            self.reported = Some(Instant::now());
        }
    }

    fn line(&self) -> String {
        let Self { what, begun, limit, .. } = self;
        format!("waiting for {what}: {} of at most {}", friendly(begun.elapsed()), friendly(*limit))
    }
}

/// Clears the line, so that the next line of output does not follow it.
impl Drop for Wait {
    fn drop(&mut self) {
        if self.rewrites && self.reported.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_prints_its_elapsed_time_and_ends_at_its_timeout() {
        let mut wait = Wait::new("the agent to end", Duration::from_secs(90));
        let mut checks = 0;
        while wait.next_check(|| "late").await.is_ok() {
            checks += 1;
            if checks == 130 {
                assert_eq!(wait.line(), "waiting for the agent to end: 1m 5s of at most 1m 30s");
            }
        }
        assert_eq!(checks, 180);
        assert_eq!(Wait::new("a look", Duration::ZERO).next_check(|| "late").await, Err("late"));
    }
}
