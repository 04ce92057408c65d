//! Names the processes that hold a GPU or an instance, because an operator must end them to free it.

use crate::process::Process;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// The number of processes that one text names, so that it stays readable. The others are counted.
const NAME_LIMIT: usize = 8;

const PROC: &str = "/proc";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    /// Its command's name (`/proc/<pid>/comm`); `None` if it cannot be read.
    pub name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders(pub Vec<Holder>);

impl Holders {
    pub fn from_processes<'p>(processes: impl IntoIterator<Item = &'p Process>) -> Self {
        Self::named(processes, Path::new(PROC))
    }

    fn named<'p>(processes: impl IntoIterator<Item = &'p Process>, proc: &Path) -> Self {
        let pids: BTreeSet<u32> = processes.into_iter().map(|p| p.pid).collect();
        let holder = |pid: u32| Holder { pid, name: command_in(proc, pid) };
        Self(pids.into_iter().map(holder).collect())
    }
}

#[must_use]
pub fn command(pid: u32) -> Option<String> {
    command_in(Path::new(PROC), pid)
}

fn command_in(proc: &Path, pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(proc.join(pid.to_string()).join("comm")).ok()?;
    Some(text.trim_end().to_owned()).filter(|name| !name.is_empty())
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            0 => {
                return f.write_str(
                    "it is in use, by nothing that NVML lists; a monitoring program (DCGM, dcgm-exporter) may hold it: \
                     pause it",
                );
            }
            1 => f.write_str("a process runs on it: ")?,
            _ => f.write_str("processes run on it: ")?,
        }
        for (n, holder) in self.0.iter().take(NAME_LIMIT).enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{}", holder.pid)?;
            if let Some(name) = &holder.name {
                write!(f, " ({name})")?;
            }
        }
        match self.0.len().saturating_sub(NAME_LIMIT) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> Process {
        Process { pid, memory: None, gi: None, ci: None }
    }

    #[test]
    fn holders_are_named_where_their_names_can_be_read() {
        let own = std::process::id();
        let name = command(own).unwrap();
        let holders = Holders::from_processes(&[process(own), process(own)]);
        assert_eq!(holders.to_string(), format!("a process runs on it: {own} ({name})"));
        let unnamed = Holders::named(&[process(4711), process(41)], Path::new("/no-such-folder"));
        assert_eq!(unnamed.to_string(), "processes run on it: 41, 4711");
    }

    #[test]
    fn many_holders_are_counted() {
        let many: Vec<Process> = (1..=11).map(process).collect();
        let text = Holders::named(&many, Path::new("/no-such-folder")).to_string();
        assert_eq!(text, "processes run on it: 1, 2, 3, 4, 5, 6, 7, 8 and 3 more");
    }

    #[test]
    fn without_listed_holders_the_text_names_likely_ones() {
        assert!(Holders::default().to_string().contains("DCGM"));
    }
}
