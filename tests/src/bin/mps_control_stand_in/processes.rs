//! A process for each server: it has a real one's name and does nothing. One that a killed daemon leaves behind goes on, in
//! the daemon's group.

use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// The argument of a run that is a server.
pub const ARGUMENT: &str = "--be-server";

/// A real server's name, of which the kernel keeps 15 bytes.
const NAME: &str = "nvidia-cuda-mps-server";

/// How often a server looks whether the folder is still there.
const TICK: Duration = Duration::from_millis(50);

/// Is a server. One whose folder is gone belongs to a test that has ended.
pub fn run(pipe: &Path) -> anyhow::Result<()> {
    fs::write("/proc/self/comm", NAME).context("failed to take a server's name")?;
    while pipe.exists() {
        thread::sleep(TICK);
    }
    Ok(())
}

/// The servers' processes.
#[derive(Debug)]
pub struct Processes {
    pipe: PathBuf,
    by_server: BTreeMap<u32, Child>,
}

impl Processes {
    pub fn new(pipe: &Path) -> Self {
        Self { pipe: pipe.to_owned(), by_server: BTreeMap::new() }
    }

    /// Starts those that are missing, and ends those whose servers have ended.
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
