//! The machine's processes, as the kernel reports them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

#[derive(Debug, Clone)]
pub struct Process {
    pub id: i32,
    /// The process id of its parent.
    pub parent: i32,
    /// The part of its program's name that the kernel stores: 15 characters.
    pub name: String,
    /// Its command line, with a NUL after each argument.
    pub arguments: String,
    /// Its initial environment, with a NUL after each variable.
    pub environment: String,
}

impl Process {
    /// All processes that this user may read.
    #[must_use]
    pub fn all() -> BTreeMap<i32, Self> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter_map(|id| Some((id, Self::from_id(id)?))).collect()
    }

    /// The process with this id, if it exists.
    #[must_use]
    pub fn from_id(id: i32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{id}"));
        let read = |file: &str| {
            let bytes = fs::read(folder.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        // The format is `<id> (<name>) <state> <parent> …`, and the name may contain any character.
        let (before, after) = stat.rsplit_once(')')?;
        let parent = after.split_whitespace().nth(1)?.parse().ok()?;
        let name = before.split_once('(')?.1.to_owned();
        Some(Self { id, parent, name, arguments: read("cmdline"), environment: read("environ") })
    }

    pub fn kill(&self) -> anyhow::Result<()> {
        let id = Pid::from_raw(self.id).context("a process has a number")?;
        kill_process(id, Signal::KILL).with_context(|| format!("failed to kill {} ({})", self.name, self.id))
    }
}
