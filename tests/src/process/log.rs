//! The end of a log file. It reads at most the last few kilobytes, because a log may be long.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Bytes to read from the end. The 25 lines of a Go program rarely have more than 200 bytes each.
const WINDOW: u64 = 16 * 1024;

/// The last `lines` lines, or the reason why there are none.
pub fn tail(path: &Path, lines: usize) -> String {
    match window(path) {
        Ok(text) if text.trim().is_empty() => format!("({} is empty)", path.display()),
        Ok(text) => {
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("({} cannot be read: {error})", path.display()),
    }
}

fn window(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(WINDOW)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_lines_are_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.log");
        let lines: Vec<String> = (0..10_000).map(|number| format!("line {number}")).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        assert_eq!(tail(&path, 2), "line 9998\nline 9999");
    }

    #[test]
    fn an_empty_log_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty.log");
        std::fs::write(&path, "").unwrap();
        assert!(tail(&path, 2).ends_with("is empty)"));
        assert!(tail(&folder.path().join("none.log"), 2).contains("cannot be read"));
    }
}
