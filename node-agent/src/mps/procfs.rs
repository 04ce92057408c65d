//! What the kernel says of a process, and the note of which process a daemon is.

use std::fs;
use std::path::Path;

/// A process that was named once, and not another that got its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessId {
    pub pid: u32,
    /// When it was started, in the kernel's ticks since boot: field 22 of `/proc/<pid>/stat`. `exec` does not change it.
    pub started: u64,
}

impl ProcessId {
    /// The process that now has this number, unless it has ended.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, started) = state_and_start(&stat)?;
        // A zombie has ended; its parent has only not heard of it yet.
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, started })
    }

    /// The process that a pid file names, if it runs.
    pub fn noted(file: &Path) -> Option<Self> {
        let noted = Self::parse(&fs::read_to_string(file).ok()?)?;
        noted.runs().then_some(noted)
    }

    /// Notes it in a pid file, all at once.
    pub fn note(self, file: &Path) -> std::io::Result<()> {
        let next = file.with_extension("next");
        fs::write(&next, format!("{} {}\n", self.pid, self.started))?;
        fs::rename(next, file)
    }

    pub fn runs(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

/// The name of the program stands in brackets, and may have blanks and brackets in it.
fn state_and_start(stat: &str) -> Option<(char, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // `state` is field 3.
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let rest = "S 1 421 421 0 -1 4194560 900 0 0 0 1 2 0 0 20 0 4 0 123456 9999 88";
        for name in ["nvidia-cuda-mps", "a b", "a) S 1 (b"] {
            assert_eq!(state_and_start(&format!("421 ({name}) {rest}")), Some(('S', 123_456)), "{name}");
        }
        assert_eq!(state_and_start("421 (x) S 1"), None);
    }

    #[test]
    fn a_number_that_another_process_got_is_not_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("daemon.pid");
        assert_eq!(ProcessId::noted(&file), None);
        let own = ProcessId::of(std::process::id()).unwrap();
        own.note(&file).unwrap();
        assert_eq!(ProcessId::noted(&file), Some(own));
        ProcessId { started: own.started - 1, ..own }.note(&file).unwrap();
        assert_eq!(ProcessId::noted(&file), None);
        fs::write(&file, "x").unwrap();
        assert_eq!(ProcessId::noted(&file), None);
    }
}
