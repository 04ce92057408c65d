//! Shows the progress of Rust and Go builds that run side by side, and about how long the rest takes. On a terminal it
//! overwrites one line. Elsewhere it prints a line now and then, because a log cannot be overwritten.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The interval in logs: short enough to show that the build is alive, long enough to stay readable.
const LOG_INTERVAL: Duration = Duration::from_secs(15);
const TERMINAL_INTERVAL: Duration = Duration::from_millis(500);

/// The part that must be done before the rest is estimated, because earlier estimates are guesses.
const LEAST_FRACTION: f64 = 0.05;

/// The CPU seconds of an average crate and an average Go package, measured on two cores. Only their ratio matters.
const RUST_COST: f64 = 1.4;
const GO_COST: f64 = 0.35;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Rust,
    Go,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Count {
    total: usize,
    done: usize,
}

#[derive(Debug, Default)]
struct Counts {
    rust: Count,
    go: Count,
}

#[derive(Debug, Default)]
pub struct Progress {
    counts: Mutex<Counts>,
}

impl Progress {
    pub fn expect(&self, lane: Lane, units: usize) {
        self.counts().lane(lane).total += units;
    }

    pub fn step(&self, lane: Lane) {
        self.counts().lane(lane).done += 1;
    }

    pub fn show<T>(build: impl FnOnce(&Self) -> T) -> T {
        let progress = Self::default();
        let in_place = stderr().is_terminal();
        thread::scope(|scope| {
            let (ended, end) = channel::<()>();
            let progress = &progress;
            scope.spawn(move || {
                let began = Instant::now();
                let interval = if in_place { TERMINAL_INTERVAL } else { LOG_INTERVAL };
                while end.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    print(&progress.counts().text(began.elapsed()), in_place);
                }
                if in_place {
                    print("", true);
                }
            });
            let result = build(progress);
            drop(ended);
            result
        })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn lane(&mut self, lane: Lane) -> &mut Count {
        match lane {
            Lane::Rust => &mut self.rust,
            Lane::Go => &mut self.go,
        }
    }

    /// The line, like `building: 120 of 361 crates, 900 of 2640 Go packages, 130 s, about 5 min left`.
    fn text(&self, elapsed: Duration) -> String {
        let parts = [(&self.rust, "crates"), (&self.go, "Go packages")];
        let parts = parts.into_iter().filter(|(count, _)| count.total > 0);
        let mut parts: Vec<String> = parts
            .map(|(count, what)| format!("{} of {} {what}", count.done.min(count.total), count.total))
            .collect();
        parts.push(format!("{} s", elapsed.as_secs()));
        // The last crates are the workspace's own and the largest, so an average says little about them.
        let left = self.left(elapsed).filter(|left| left.as_secs() >= 10);
        parts.extend(left.map(|left| format!("about {} left", coarse(left))));
        format!("building: {}", parts.join(", "))
    }

    fn left(&self, elapsed: Duration) -> Option<Duration> {
        let cost = |count: &Count| {
            let total = u32::try_from(count.total).unwrap_or(u32::MAX);
            let done = u32::try_from(count.done.min(count.total)).unwrap_or(u32::MAX);
            (f64::from(done), f64::from(total))
        };
        let ((rust_done, rust_total), (go_done, go_total)) = (cost(&self.rust), cost(&self.go));
        let total = rust_total * RUST_COST + go_total * GO_COST;
        let fraction = (rust_done * RUST_COST + go_done * GO_COST) / total;
        (fraction >= LEAST_FRACTION).then(|| elapsed.mul_f64((1.0 - fraction).max(0.0) / fraction))
    }
}

fn coarse(left: Duration) -> String {
    let seconds = left.as_secs();
    if seconds < 90 {
        format!("{} s", seconds.next_multiple_of(10))
    } else {
        format!("{} min", (seconds + 30) / 60)
    }
}

fn print(text: &str, in_place: bool) {
    // Only a terminal gets the carriage return and "erase line" (ECMA-48 EL 2). A closed stderr must not stop a build.
    let mut screen = stderr().lock();
    let _ = if in_place { write!(screen, "\r\x1b[2K{text}") } else { writeln!(screen, "{text}") };
    let _ = screen.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_estimated_once_enough_is_done() {
        let progress = Progress::default();
        progress.expect(Lane::Rust, 100);
        progress.expect(Lane::Go, 400);
        let text = |seconds| progress.counts().text(Duration::from_secs(seconds));
        assert_eq!(text(3), "building: 0 of 100 crates, 0 of 400 Go packages, 3 s");
        (0..50).for_each(|_| progress.step(Lane::Rust));
        (0..200).for_each(|_| progress.step(Lane::Go));
        assert_eq!(text(300), "building: 50 of 100 crates, 200 of 400 Go packages, 300 s, about 5 min left");
        (0..60).for_each(|_| progress.step(Lane::Rust));
        (0..200).for_each(|_| progress.step(Lane::Go));
        assert_eq!(text(600), "building: 100 of 100 crates, 400 of 400 Go packages, 600 s");
    }

    #[test]
    fn a_lane_without_units_is_not_shown() {
        let progress = Progress::default();
        progress.expect(Lane::Go, 3);
        assert_eq!(progress.counts().text(Duration::ZERO), "building: 0 of 3 Go packages, 0 s");
    }
}
