//! Memory and thread limits, parsed and printed as the daemon does.

/// The limits of a server for each client, or the defaults for later servers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The memory limit in MiB; `None` if unlimited.
    pub memory: Option<u64>,
    pub threads: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: None, threads: 100.0 }
    }
}

impl Limits {
    /// Sets the memory limit. Like the real daemon, it ignores a value that it cannot parse, without an
    /// error.
    pub fn set_memory(&mut self, text: &str) {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let factor = match &text[digits..] {
            "M" | "MB" => 1,
            "G" | "GB" => 1024,
            _ => return,
        };
        if let Ok(amount) = text[..digits].parse::<u64>() {
            self.memory = Some(amount * factor).filter(|mib| *mib > 0);
        }
    }

    /// The limit as `10G` (rounded down), as `1000M` below one GiB, or empty if unlimited.
    pub fn memory_text(&self) -> String {
        match self.memory {
            None => String::new(),
            Some(mib) if mib < 1024 => format!("{mib}M\n"),
            Some(mib) => format!("{}G\n", mib / 1024),
        }
    }

    /// Sets the percentage, and returns the valid one. Like the real daemon, it ignores a value out of range.
    pub fn set_threads(&mut self, text: &str) -> String {
        if let Ok(percent) = text.parse::<f64>()
            && percent > 0.0
            && percent <= 100.0
        {
            self.threads = percent;
        }
        self.threads_text()
    }

    pub fn threads_text(&self) -> String {
        format!("{:.1}\n", self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_written_as_it_was_seen_to_be() {
        for (set, read) in [
            ("10240M", "10G\n"),
            ("10241M", "10G\n"),
            ("1000M", "1000M\n"),
            ("2G", "2G\n"),
            ("900000M", "878G\n"),
            ("0M", ""),
            ("x", "5M\n"),
        ] {
            let mut limits = Limits { memory: Some(5), ..Limits::default() };
            limits.set_memory(set);
            assert_eq!(limits.memory_text(), read, "{set}");
        }
    }

    #[test]
    fn a_percentage_out_of_bounds_changes_nothing() {
        let mut limits = Limits::default();
        assert_eq!(limits.set_threads("14"), "14.0\n");
        for refused in ["150", "x", "0", "-1"] {
            assert_eq!(limits.set_threads(refused), "14.0\n", "{refused}");
        }
    }
}
