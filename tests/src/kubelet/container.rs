//! A container as a local process: its command line, environment, log and end.
//!
//! Without an image there is no isolation: the command must exist on this machine. The environment has only
//! PATH and the variables of the device plugin and the pod. With an image, [`crate::container_root`] defines
//! what the process sees.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio_util::sync::CancellationToken;

use crate::binaries::{self, BinaryError};
use crate::process::{Child, Program, SIGNAL_EXIT};

use super::demand::PodKey;
use super::log_book;
use super::pod_files::PATH;

/// How often a process is checked for its end.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The container's environment. The pod's own variables override the device plugin's, as in the kubelet; only
/// literal values are supported here.
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

/// The program of a container; `None` without a command, because then only its image defines the program.
pub(super) fn program(
    key: &PodKey,
    container: &Container,
    environment: &BTreeMap<String, String>,
    logs: &Path,
) -> Option<Program> {
    let command = container.command.as_ref().filter(|command| !command.is_empty())?;
    let name = log_book::name(key, &container.name);
    // The program has its own session, so that all processes of the container can be signalled together. `env -i` keeps
    // the test process's environment out.
    let program = Program::new(name, "/usr/bin/setsid", logs)
        .args(["/usr/bin/env", "-i"])
        .args(environment.iter().map(|(name, value)| format!("{name}={value}")))
        .args(command);
    Some(program.args(container.args.iter().flatten()))
}

/// The program of a container with an image. The document describes the container.
pub(super) fn program_of_image(
    key: &PodKey,
    container: &Container,
    document: &Path,
    logs: &Path,
) -> Result<Program, BinaryError> {
    let name = log_book::name(key, &container.name);
    Ok(Program::new(name, binaries::ours("container_stand_in")?, logs).arg(document))
}

/// Waits for the end of a container. After `stop` it ends the container: TERM, then KILL after `grace`. When
/// the first process ends, the others are killed, as in a PID namespace.
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

/// Signals every process of the container whose first process is `first`.
pub(super) fn signal_all(first: u32, signal: Signal) -> rustix::io::Result<()> {
    let group = i32::try_from(first).ok().and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    kill_process_group(group, signal)
}

async fn its_end(child: &mut Child) -> i32 {
    loop {
        if let Some(code) = ended(child) {
            return code;
        }
        tokio::time::sleep(EXIT_POLL_INTERVAL).await;
    }
}

fn ended(child: &mut Child) -> Option<i32> {
    match child.exit_code() {
        Ok(code) => code,
        Err(error) => {
            tracing::warn!(%error, "a container's process cannot be waited for");
            Some(SIGNAL_EXIT)
        }
    }
}
