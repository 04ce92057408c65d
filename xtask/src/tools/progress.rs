//! What a person sees while a long build runs: one line rewritten in place on a terminal, else a line now and then.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, Instant};

/// In a log: often enough that nobody takes the build for dead, seldom enough to stay readable.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const TERMINAL_INTERVAL: Duration = Duration::from_millis(500);

/// Progress of one program's build.
#[derive(Debug)]
pub struct Progress {
    label: String,
    began: Instant,
    shown: Option<Instant>,
    in_place: bool,
}

impl Progress {
    /// `number` of `total`, counted from 1.
    pub fn new(name: &str, number: usize, total: usize) -> Self {
        let label = format!("tools: {name} ({number} of {total})");
        Self { label, began: Instant::now(), shown: None, in_place: stderr().is_terminal() }
    }

    /// To be called often; prints when it is time. `doing` says what happens now.
    pub fn tick(&mut self, doing: &str) {
        let interval = if self.in_place { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        if self.shown.is_none_or(|at| at.elapsed() >= interval) {
            self.shown = Some(Instant::now());
            self.print(doing, if self.in_place { "" } else { "\n" });
        }
    }

    /// The last line of this program.
    pub fn finish(&self, outcome: &str) {
        self.print(outcome, "\n");
    }

    fn print(&self, text: &str, end: &str) {
        // Carriage return and "erase line" (ECMA-48 EL 2) only where a terminal reads them.
        let start = if self.in_place { "\r\x1b[2K" } else { "" };
        let seconds = self.began.elapsed().as_secs();
        // A closed stderr must not stop a build.
        let _ = write!(stderr().lock(), "{start}{}: {text}, {seconds} s{end}", self.label);
        let _ = stderr().flush();
    }
}
