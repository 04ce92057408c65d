//! A daemon's process: it is started or adopted, watched, and ended.

use super::procfs::{ProcessId, Stat, left_of};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal,
};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Poll interval for the end of killed processes.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A daemon's process, which leads a process group with its servers in it. Dropping the value does not end them.
#[derive(Debug)]
pub(super) struct Process {
    id: ProcessId,
    /// Readable once the process has ended.
    end: AsyncFd<OwnedFd>,
    /// Set if this agent started it; then the agent must reap it once it has ended.
    child: Option<Child>,
}

impl Process {
    /// Adopts the daemon of a pid file, if it runs.
    pub fn adopt(pid_file: &Path) -> io::Result<Option<Self>> {
        match ProcessId::noted(pid_file) {
            Some(id) => Self::watch(id, None).map(Some),
            None => Ok(None),
        }
    }

    /// Takes a daemon that was just started.
    pub fn started(child: Child) -> io::Result<Self> {
        // It is not reaped yet, so the pid is still its own. But it may have ended, and then it has no start time to
        // read.
        let id = ProcessId::from_pid(child.id()).unwrap_or(ProcessId { pid: child.id(), started: 0 });
        Self::watch(id, Some(child))
    }

    #[expect(
        deprecated,
        reason = "unsound for types that change their descriptor, which OwnedFd does not; the other is unsafe"
    )]
    fn watch(id: ProcessId, child: Option<Child>) -> io::Result<Self> {
        let end = AsyncFd::with_interest(pidfd_open(pid(id)?, PidfdFlags::empty())?, Interest::READABLE)?;
        Ok(Self { id, end, child })
    }

    pub fn id(&self) -> u32 {
        self.id.pid
    }

    /// Returns how it ended, if it did. If it is this agent's child, the rest of its group is killed; see
    /// [`kill_left`].
    pub fn ended(&mut self) -> Option<String> {
        if self.id.runs() {
            return None;
        }
        let Some(child) = &mut self.child else { return Some("it ended".to_owned()) };
        // The pid is not reused before it is reaped, so the group cannot belong to another process.
        if let Ok(group) = pid(self.id) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        Some(match child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            Ok(None) => "it ended".to_owned(),
            Err(error) => error.to_string(),
        })
    }

    pub async fn end(&self) {
        if let Err(error) = self.end.readable().await {
            tracing::warn!(pid = self.id.pid, %error, "an MPS daemon cannot be watched");
            std::future::pending::<()>().await;
        }
    }

    /// Kills the process and its servers, and waits for its end.
    pub async fn kill(&self, within: Duration) -> Result<(), String> {
        if self.id.runs() {
            let pid = pid(self.id).map_err(|error| error.to_string())?;
            // A launcher that has not started its own session yet leads no group, so kill the process alone.
            kill_process_group(pid, Signal::KILL)
                .or_else(|_| kill_process(pid, Signal::KILL))
                .map_err(|error| format!("process {} cannot be killed: {error}", self.id.pid))?;
        }
        tokio::time::timeout(within, self.end())
            .await
            .map_err(|_| format!("process {} does not end within {within:?} of being killed", self.id.pid))
    }
}

/// Kills the servers that the daemon of a pid file has left, and waits for their end. Otherwise they would keep their
/// clients and the GPU's memory beside the next daemon. This agent is not their parent, so it polls for their end.
pub(super) async fn kill_left(pid_file: &Path, within: Duration) -> Result<(), String> {
    let Some(daemon) = ProcessId::read(pid_file) else { return Ok(()) };
    let until = Instant::now() + within;
    loop {
        let all = Stat::all().map_err(|error| format!("failed to list processes: {error}"))?;
        let left = left_of(daemon, &all);
        let Some(first) = left.first() else { return Ok(()) };
        if Instant::now() >= until {
            let pid = first.pid;
            return Err(format!(
                "process {pid} of an ended MPS daemon does not end within {within:?} of being killed"
            ));
        }
        for process in left {
            tracing::warn!(
                pid = process.pid,
                daemon = daemon.pid,
                "killing what an ended MPS daemon has left"
            );
            if let Err(error) = kill_just(process) {
                tracing::warn!(pid = process.pid, %error, "it cannot be killed");
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Kills this process, and not a later one with its pid.
fn kill_just(process: ProcessId) -> io::Result<()> {
    let handle = pidfd_open(pid(process)?, PidfdFlags::empty())?;
    if process.runs() {
        pidfd_send_signal(&handle, Signal::KILL)?;
    }
    Ok(())
}

fn pid(id: ProcessId) -> io::Result<Pid> {
    let raw = i32::try_from(id.pid).ok().and_then(Pid::from_raw);
    raw.ok_or_else(|| io::Error::other(format!("{} is no process id", id.pid)))
}
