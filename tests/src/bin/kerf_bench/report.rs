//! Figures and the bars that they are held to.

use std::io::Write as _;
use std::time::Duration;

use kerf_tests::percentile;
use serde::Serialize;

/// Percentiles of a set of durations, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Latency {
    /// How many were measured.
    pub count: usize,
    /// Half took no longer.
    pub p50_ms: f64,
    /// 99 of 100 took no longer.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Latency {
    /// The percentiles of `samples` (nearest rank).
    pub fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort();
        let at = |percent| percentile(&samples, percent).map_or(f64::NAN, |d| d.as_secs_f64() * 1000.0);
        Self { count: samples.len(), p50_ms: at(50), p99_ms: at(99), max_ms: at(100) }
    }
}

/// One figure with its bar.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The bar.
    pub bar: f64,
    /// Whether the value may be at most the bar, or must be at least.
    pub at_most: bool,
}

impl Figure {
    /// A value that may be at most `bar`.
    pub fn at_most(name: &str, value: f64, bar: f64) -> Self {
        Self { name: name.to_owned(), value, bar, at_most: true }
    }

    /// A value that must be at least `bar`.
    pub fn at_least(name: &str, value: f64, bar: f64) -> Self {
        Self { name: name.to_owned(), value, bar, at_most: false }
    }

    /// Whether the bar is met.
    pub fn is_met(&self) -> bool {
        if self.at_most { self.value <= self.bar } else { self.value >= self.bar }
    }
}

/// Prints a line of the table.
pub fn print(line: &str) {
    // A closed pipe ends the output, not the measurement.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints figures beside their bars.
pub fn print_figures(figures: &[Figure]) {
    for figure in figures {
        let relation = if figure.at_most { "≤" } else { "≥" };
        let verdict = if figure.is_met() { "met" } else { "MISSED" };
        // A ratio's first digit says too little.
        let digits = if figure.bar < 10.0 { 2 } else { 1 };
        print(&format!(
            "{:<52} {:>10.digits$}   bar {relation} {:<8} {verdict}",
            figure.name, figure.value, figure.bar
        ));
    }
}
