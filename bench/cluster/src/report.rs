//! Figures of a benchmark, and the bars that they must meet.

use std::io::Write as _;
use std::time::Duration;

use kerf_tests::percentile;
use serde::Serialize;

/// Percentiles of a set of durations, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    pub count: usize,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Latency {
    /// The percentiles of `samples` (nearest rank).
    pub fn from_samples(mut samples: Vec<Duration>) -> Self {
        samples.sort();
        let at = |percent| percentile(&samples, percent).map_or(f64::NAN, |d| d.as_secs_f64() * 1000.0);
        Self { count: samples.len(), p50_ms: at(50), p99_ms: at(99), max_ms: at(100) }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub bar: f64,
    /// Whether the bar is an upper limit; otherwise it is a lower one.
    pub at_most: bool,
}

impl Figure {
    pub fn at_most(name: &str, value: f64, bar: f64) -> Self {
        Self { name: name.to_owned(), value, bar, at_most: true }
    }

    pub fn at_least(name: &str, value: f64, bar: f64) -> Self {
        Self { name: name.to_owned(), value, bar, at_most: false }
    }

    /// Whether the bar is met.
    pub fn is_met(&self) -> bool {
        if self.at_most { self.value <= self.bar } else { self.value >= self.bar }
    }
}

/// A count as a figure's value.
pub fn count(of: usize) -> f64 {
    f64::from(u32::try_from(of).unwrap_or(u32::MAX))
}

pub fn print(line: &str) {
    // A closed pipe ends the output, but not the measurement.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

pub fn print_figures(figures: &[Figure]) {
    for figure in figures {
        let relation = if figure.at_most { "≤" } else { "≥" };
        let verdict = if figure.is_met() { "met" } else { "MISSED" };
        // A bar below 10 is that of a ratio, which needs two digits.
        let digits = if figure.bar < 10.0 { 2 } else { 1 };
        print(&format!(
            "{:<52} {:>10.digits$}   bar {relation} {:<8} {verdict}",
            figure.name, figure.value, figure.bar
        ));
    }
}
