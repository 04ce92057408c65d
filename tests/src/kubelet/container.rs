//! A container as a local process: its command line, its environment, its log, its end.
//!
//! Without an image there is no isolation either: the command must exist on this machine. The environment holds only what
//! the device plugin and the pod give, and a PATH. With an image, [`crate::container_root`] is what the process sees.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio_util::sync::CancellationToken;

use crate::binaries::{self, BinaryError};
use crate::process::{Child, ProcessError, Program};

use super::demand::PodKey;
use super::log_book;
use super::pod_files::PATH;

/// How often a process is asked whether it has ended.
const EXIT_POLL: Duration = Duration::from_millis(50);

/// Exit code of a process that a signal ended: shells and runtimes count from here.
const SIGNAL_EXIT: i32 = 128;

/// The container's environment. The pod's own variables win over the device plugin's, as in the kubelet; only
/// literal values are known here.
pub(super) fn environment(
    container: &Container,
    granted: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let own = container.env.iter().flatten();
    let own = own.filter_map(|variable| Some((variable.name.clone(), variable.value.clone()?)));
    let path = (String::from("PATH"), String::from(PATH));
    let granted = granted.iter().map(|(name, value)| (name.clone(), value.clone()));
    std::iter::once(path).chain(granted).chain(own).collect()
}

/// The program of a container; None if it has no command, for then its image would say what runs.
pub(super) fn program(
    key: &PodKey,
    container: &Container,
    environment: &BTreeMap<String, String>,
    logs: &Path,
) -> Option<Program> {
    let command = container.command.as_ref().filter(|command| !command.is_empty())?;
    let name = log_book::name(key, &container.name);
    // A session of its own, so that all of the container's processes can be signalled together; and env(1), so that
    // nothing of the test process's environment leaks in.
    let program = Program::new(name, "/usr/bin/setsid", logs)
        .args(["/usr/bin/env", "-i"])
        .args(environment.iter().map(|(name, value)| format!("{name}={value}")))
        .args(command);
    Some(program.args(container.args.iter().flatten()))
}

/// The program of a container with an image, of which the document tells.
pub(super) fn program_of_image(
    key: &PodKey,
    container: &Container,
    document: &Path,
    logs: &Path,
) -> Result<Program, BinaryError> {
    let name = log_book::name(key, &container.name);
    Ok(Program::new(name, binaries::ours("container_stand_in")?, logs).arg(document))
}

/// Starts a program, off the asynchronous threads.
pub(super) async fn spawn(program: Program) -> Result<Child, ProcessError> {
    match tokio::task::spawn_blocking(move || program.spawn()).await {
        Ok(child) => child,
        Err(stopped) => std::panic::resume_unwind(stopped.into_panic()),
    }
}

/// Waits for the end of a container, or ends it when `stop` says so: TERM, then KILL after `grace`. With the first
/// process the others of the container end, as they do with the first of a PID namespace.
pub(super) async fn exit_code(
    child: &mut Child,
    stop: &CancellationToken,
    grace: impl Fn() -> Duration,
) -> i32 {
    let code = tokio::select! {
        code = its_end(child) => Some(code),
        () = stop.cancelled() => None,
    };
    let code = match code {
        Some(code) => code,
        None => end(child, grace()).await,
    };
    let _nobody_left = signal_all(child.id(), Signal::KILL);
    code
}

async fn end(child: &mut Child, grace: Duration) -> i32 {
    let _nobody_left = signal_all(child.id(), Signal::TERM);
    if let Ok(code) = tokio::time::timeout(grace, its_end(child)).await {
        return code;
    }
    if let Err(error) = child.kill() {
        tracing::warn!(%error, "a container's process could not be killed");
    }
    ended(child).unwrap_or(SIGNAL_EXIT)
}

/// Signals every process of the container with this first process.
pub(super) fn signal_all(first: u32, signal: Signal) -> rustix::io::Result<()> {
    let group = i32::try_from(first).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    kill_process_group(group, signal)
}

async fn its_end(child: &mut Child) -> i32 {
    loop {
        if let Some(code) = ended(child) {
            return code;
        }
        tokio::time::sleep(EXIT_POLL).await;
    }
}

fn ended(child: &mut Child) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    match child.exited() {
        Ok(status) => {
            let status = status?;
            Some(status.code().unwrap_or_else(|| SIGNAL_EXIT + status.signal().unwrap_or_default()))
        }
        Err(error) => {
            tracing::warn!(%error, "a container's process cannot be waited for");
            Some(SIGNAL_EXIT)
        }
    }
}
