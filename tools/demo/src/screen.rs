//! Prints the demo's output: in colour to a terminal, without to a file. It also records it for the picture.

use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;

use crate::recording::Recording;

pub struct Screen {
    begun: Instant,
    recording: Mutex<Recording>,
}

impl Screen {
    /// A screen that prints to standard output.
    pub fn new() -> Self {
        Self { begun: Instant::now(), recording: Mutex::default() }
    }

    pub fn say(&self, line: &str) {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).add(self.begun.elapsed(), line);
        // `anstream` drops styles if the output is no terminal. A closed pipe ends the output, but not the
        // demo.
        let _ = writeln!(anstream::stdout().lock(), "{line}");
    }

    pub fn title(&self, text: &str) {
        self.say(&format!("\n\x1b[1m{text}\x1b[0m"));
    }

    /// Prints a step, with the time since the demo began.
    pub fn step(&self, text: &str) {
        self.say(&format!("[{:6.2} s] {text}", self.begun.elapsed().as_secs_f64()));
    }

    /// Writes everything that was printed so far as an animated picture.
    pub fn write_recording(&self, path: &Path) -> anyhow::Result<()> {
        let recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        std::fs::write(path, recording.svg("cargo xtask demo"))
            .with_context(|| format!("failed to write {}", path.display()))
    }
}
