//! A process for each server: it has the real one's name and does nothing. After a killed daemon it stays, in
//! the daemon's process group, as the real one does.

use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// The first argument of a process that is a server.
pub const ARGUMENT: &str = "--be-server";

/// The name of a real server. The kernel keeps 15 bytes of it.
const NAME: &str = "nvidia-cuda-mps-server";

/// How often a server checks whether its folder still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs as a server. If the pipe folder is gone, the test has ended, so the process ends too.
pub fn run(pipe: &Path) -> anyhow::Result<()> {
    fs::write("/proc/self/comm", NAME).context("failed to take a server's name")?;
    while pipe.exists() {
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[derive(Debug)]
pub struct Processes {
    pipe: PathBuf,
    by_server: BTreeMap<u32, Child>,
}

impl Processes {
    pub fn new(pipe: &Path) -> Self {
        Self { pipe: pipe.to_owned(), by_server: BTreeMap::new() }
    }

    /// Starts missing processes, and ends those whose servers have ended.
    pub fn follow<'a>(&mut self, servers: impl Iterator<Item = &'a u32>) -> anyhow::Result<()> {
        let servers: BTreeSet<u32> = servers.copied().collect();
        let ended = self.by_server.extract_if(.., |own, _| !servers.contains(own));
        ended.for_each(|(_, process)| end(process));
        for own in servers {
            if !self.by_server.contains_key(&own) {
                let mut server = Command::new(std::env::current_exe()?);
                server.arg(ARGUMENT).arg(&self.pipe).stdin(Stdio::null());
                self.by_server.insert(own, server.spawn().context("failed to start a server")?);
            }
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        std::mem::take(&mut self.by_server).into_values().for_each(end);
    }
}

fn end(mut process: Child) {
    let _ = process.kill();
    let _ = process.wait();
}
