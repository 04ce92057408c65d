//! Reads what the kernel reports of a process, and the pid file that identifies a daemon.

use std::fs;
use std::path::Path;

/// The common prefix of MPS's program names.
const MPS: &str = "nvidia-cuda-mps";

/// Identifies a process over time: a later process with the same pid is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessId {
    pub pid: u32,
    /// When it was started, in the kernel's ticks since boot: field 22 of `/proc/<pid>/stat`. `exec` does not change
    /// it.
    pub started: u64,
}

impl ProcessId {
    /// The process that now has this pid, unless it has ended.
    pub fn from_pid(pid: u32) -> Option<Self> {
        Stat::read(pid).filter(Stat::runs).map(|stat| stat.id)
    }

    /// The process of a pid file, if it runs.
    pub fn noted(file: &Path) -> Option<Self> {
        Self::read(file).filter(|noted| noted.runs())
    }

    /// The process of a pid file, whether or not it runs.
    pub fn read(file: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(file).ok()?)
    }

    /// Writes it into a pid file atomically.
    pub fn note(self, file: &Path) -> std::io::Result<()> {
        let next = file.with_extension("next");
        fs::write(&next, format!("{} {}\n", self.pid, self.started))?;
        fs::rename(next, file)
    }

    pub fn runs(self) -> bool {
        Self::from_pid(self.pid) == Some(self)
    }

    fn parse(text: &str) -> Option<Self> {
        let (pid, started) = text.trim().split_once(' ')?;
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()? })
    }
}

/// Fields of `/proc/<pid>/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stat {
    id: ProcessId,
    /// The program's name, of which the kernel keeps 15 bytes.
    name: String,
    state: char,
    group: u32,
    session: u32,
}

impl Stat {
    /// The name is in brackets, and may itself contain blanks and brackets.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, fields) = rest.rsplit_once(')')?;
        // The field numbers start after the name: `state` is field 3.
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse().ok();
        Some(Self {
            id: ProcessId { pid: pid.parse().ok()?, started: fields.get(22 - 3)?.parse().ok()? },
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            group: number(5)?,
            session: number(6)?,
        })
    }

    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    pub fn all() -> std::io::Result<Vec<Self>> {
        let names = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| Self::read(name.parse().ok()?)).collect())
    }

    /// Whether it runs. A zombie has ended; only its parent has not reaped it yet.
    fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// The MPS processes that an ended daemon has left in its group and session.
///
/// Linux does not reuse the number of an existing group as a pid. So a group with the daemon's number is the daemon's
/// own, unless another process has that number now.
pub(super) fn left_of(daemon: ProcessId, all: &[Stat]) -> Vec<ProcessId> {
    if all.iter().any(|stat| stat.id.pid == daemon.pid && stat.id != daemon) {
        return Vec::new();
    }
    let is_left = |stat: &&Stat| {
        (stat.group, stat.session) == (daemon.pid, daemon.pid)
            && stat.id.started >= daemon.started
            && stat.name.starts_with(MPS)
            && stat.runs()
    };
    all.iter().filter(is_left).map(|stat| stat.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_parsed_after_any_name() {
        let rest = "S 1 420 419 0 -1 4194560 900 0 0 0 1 2 0 0 20 0 4 0 123456 9999 88";
        for name in ["nvidia-cuda-mps", "a b", "a) S 1 (b"] {
            let stat = Stat::parse(&format!("421 ({name}) {rest}")).unwrap();
            let id = ProcessId { pid: 421, started: 123_456 };
            assert_eq!(stat, Stat { id, name: name.to_owned(), state: 'S', group: 420, session: 419 });
        }
        assert_eq!(Stat::parse("421 (x) S 1"), None);
    }

    /// What is left of a daemon with pid 421 and start time 100, given these processes.
    fn left(stats: &[(u32, &str, char, u32, u32, u64)]) -> Vec<u32> {
        let parse = |(pid, name, state, group, session, started): &(u32, &str, char, u32, u32, u64)| {
            let zeros = "0 ".repeat(15);
            Stat::parse(&format!("{pid} ({name}) {state} 1 {group} {session} {zeros}{started} 1")).unwrap()
        };
        let all: Vec<Stat> = stats.iter().map(parse).collect();
        let daemon = ProcessId { pid: 421, started: 100 };
        left_of(daemon, &all).into_iter().map(|id| id.pid).collect()
    }

    #[test]
    fn an_ended_daemons_servers_are_distinguished_from_other_processes() {
        let server = (500, "nvidia-cuda-mps", 'S', 421, 421, 200);
        assert_eq!(left(&[server]), [500]);
        assert_eq!(left(&[(421, "nvidia-cuda-mps", 'Z', 421, 421, 100), server]), [500]);
        for other in [
            (500, "python", 'S', 421, 421, 200),
            (500, "nvidia-cuda-mps", 'Z', 421, 421, 200),
            (500, "nvidia-cuda-mps", 'S', 400, 421, 200),
            (500, "nvidia-cuda-mps", 'S', 421, 400, 200),
            (500, "nvidia-cuda-mps", 'S', 421, 421, 99),
        ] {
            assert_eq!(left(&[other]), Vec::<u32>::new(), "{other:?}");
        }
        let successor = (421, "nvidia-cuda-mps", 'S', 421, 421, 300);
        assert_eq!(left(&[successor, server]), Vec::<u32>::new(), "the number is another daemon's now");
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("daemon.pid");
        assert_eq!(ProcessId::noted(&file), None);
        let own = ProcessId::from_pid(std::process::id()).unwrap();
        own.note(&file).unwrap();
        assert_eq!(ProcessId::noted(&file), Some(own));
        ProcessId { started: own.started - 1, ..own }.note(&file).unwrap();
        assert_eq!(ProcessId::noted(&file), None);
        fs::write(&file, "x").unwrap();
        assert_eq!(ProcessId::noted(&file), None);
    }
}
