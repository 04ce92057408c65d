//! What the demo prints: to a terminal with colour, to a file without.

use std::io::{IsTerminal as _, Write as _};
use std::time::Instant;

/// The screen.
pub struct Screen {
    begun: Instant,
    out: std::io::Stdout,
    colour: bool,
}

impl Screen {
    /// Standard output.
    pub fn new() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { begun: Instant::now(), out: std::io::stdout(), colour }
    }

    /// A line as it is.
    pub fn say(&self, line: &str) {
        // A closed pipe ends the demo's output, not the demo.
        let _ = writeln!(self.out.lock(), "{line}");
    }

    /// A heading.
    pub fn title(&self, text: &str) {
        self.say(&format!("\n{}", self.paint("1", text)));
    }

    /// A step, with the time since the demo began.
    pub fn step(&self, text: &str) {
        self.say(&format!("[{:6.2} s] {text}", self.begun.elapsed().as_secs_f64()));
    }

    /// Whether the screen has styles.
    pub fn has_colour(&self) -> bool {
        self.colour
    }

    /// Text in an ANSI style, if the screen has styles.
    pub fn paint(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
