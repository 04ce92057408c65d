//! What the demo prints: to a terminal with colour, to a file without; and recorded, if that is asked for.

use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;

use crate::recording::Recording;

/// The screen.
pub struct Screen {
    begun: Instant,
    recording: Mutex<Recording>,
}

impl Screen {
    /// Standard output.
    pub fn new() -> Self {
        Self { begun: Instant::now(), recording: Mutex::default() }
    }

    /// A line as it is.
    pub fn say(&self, line: &str) {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner).add(self.begun.elapsed(), line);
        // Styles are left out where no terminal reads them. A closed pipe ends the demo's output, not the demo.
        let _ = writeln!(anstream::stdout().lock(), "{line}");
    }

    /// A heading.
    pub fn title(&self, text: &str) {
        self.say(&format!("\n\x1b[1m{text}\x1b[0m"));
    }

    /// A step, with the time since the demo began.
    pub fn step(&self, text: &str) {
        self.say(&format!("[{:6.2} s] {text}", self.begun.elapsed().as_secs_f64()));
    }

    /// Writes what was printed so far as an animated picture.
    pub fn write_recording(&self, path: &Path) -> anyhow::Result<()> {
        let recording = self.recording.lock().unwrap_or_else(PoisonError::into_inner);
        std::fs::write(path, recording.svg("cargo xtask demo"))
            .with_context(|| format!("failed to write {}", path.display()))
    }
}
