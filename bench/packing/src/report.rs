//! Prints figures with their bars, tables, and progress.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The direction in which a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Lower,
    Higher,
}

/// One figure with its bar, and with the stricter aim beyond it.
#[derive(Debug, Clone)]
pub struct Bar {
    figure: String,
    measured: f64,
    pass: f64,
    aim: f64,
    better: Better,
}

impl Bar {
    /// A figure that may be at most `pass`.
    pub fn at_most(figure: &str, measured: f64, pass: f64, aim: f64) -> Self {
        Self { figure: figure.to_owned(), measured, pass, aim, better: Better::Lower }
    }

    /// A figure that must be at least `pass`.
    pub fn at_least(figure: &str, measured: f64, pass: f64, aim: f64) -> Self {
        Self { better: Better::Higher, ..Self::at_most(figure, measured, pass, aim) }
    }

    pub fn is_met(&self) -> bool {
        self.reaches(self.pass)
    }

    fn reaches(&self, bar: f64) -> bool {
        match self.better {
            Better::Lower => self.measured <= bar,
            Better::Higher => self.measured >= bar,
        }
    }

    fn line(&self) -> String {
        let relation = if self.better == Better::Lower { "≤" } else { "≥" };
        let verdict = match (self.is_met(), self.reaches(self.aim)) {
            (true, true) => "met, and the aim",
            (true, false) => "met",
            (false, _) => "NOT MET",
        };
        format!(
            "{:<62} {:>8.3}   bar {relation} {:<6} aim {relation} {:<6} {verdict}",
            self.figure, self.measured, self.pass, self.aim
        )
    }
}

/// Prints figures with their bars.
pub fn print_bars(bars: &[Bar]) {
    print("");
    for bar in bars {
        print(&bar.line());
    }
}

pub fn print(line: &str) {
    // A closed pipe ends the output, not the measurement.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Prints a row of a table: its name, then cells of one width.
pub fn print_row(name: &str, width: usize, cells: impl IntoIterator<Item = String>) {
    let line = cells.into_iter().fold(format!("{name:<18}"), |line, cell| format!("{line}{cell:>width$}"));
    print(&line);
}

/// Reports on standard error how far a measurement is.
#[derive(Debug)]
pub struct Progress {
    what: String,
    all: usize,
    done: AtomicUsize,
}

impl Progress {
    /// Starts `all` steps of `what`.
    pub fn new(what: &str, all: usize) -> Self {
        let progress = Self { what: what.to_owned(), all, done: AtomicUsize::new(0) };
        progress.show(0);
        progress
    }

    pub fn step(&self) {
        self.show(self.done.fetch_add(1, Ordering::Relaxed) + 1);
    }

    /// On a terminal the line is rewritten in place. Elsewhere lines are printed at the start, at each tenth and at the
    /// end.
    fn show(&self, done: usize) {
        let mut stderr = std::io::stderr().lock();
        let terminal = stderr.is_terminal();
        if terminal || done == self.all || done.is_multiple_of(self.all.div_ceil(10).max(1)) {
            let (start, end) =
                if terminal { ("\r", if done == self.all { "\n" } else { "" }) } else { ("", "\n") };
            let _ = write!(stderr, "{start}# {}: {done} of {}{end}", self.what, self.all);
        }
    }
}

/// A count as a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub fn as_f64(count: usize) -> f64 {
    count as f64
}

/// The mean; NaN if there are no values.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) =
        values.into_iter().fold((0.0, 0_usize), |(sum, count), value| (sum + value, count + 1));
    sum / as_f64(count)
}

/// The greatest value; minus infinity if there are none.
pub fn greatest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_whether_it_and_its_aim_are_met() {
        assert!(Bar::at_most("x", 1.0, 2.0, 1.5).line().ends_with("met, and the aim"));
        assert!(Bar::at_most("x", 1.7, 2.0, 1.5).line().ends_with("aim ≤ 1.5    met"));
        assert!(Bar::at_least("x", 1.7, 2.0, 2.5).line().ends_with("NOT MET"));
        assert!(!Bar::at_most("x", f64::NAN, 2.0, 1.5).is_met());
    }

    #[test]
    fn means_and_greatest_are_of_what_was_given() {
        assert!((mean([1.0, 2.0, 6.0]) - 3.0).abs() < 1e-9);
        assert!((greatest([1.0, 6.0, 2.0]) - 6.0).abs() < 1e-9);
    }
}
