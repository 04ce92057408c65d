//! Starts the MPS daemon of a target.

use super::folder::Folder;
use super::process::Process;
use super::{Paths, launch};
use std::process::{Command, Stdio};

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("failed to prepare its folder")]
    Folder(#[source] std::io::Error),
    #[error("failed to run {0}")]
    Launcher(String, #[source] std::io::Error),
    #[error("failed to watch it")]
    Watch(#[source] std::io::Error),
}

pub(super) fn start(
    paths: &Paths,
    folder: &Folder,
    target: &str,
    generation: u64,
) -> Result<Process, StartError> {
    folder.prepare().map_err(StartError::Folder)?;
    folder.clear().map_err(StartError::Folder)?;
    folder.set_generation(generation).map_err(StartError::Folder)?;
    let mut command = command(paths, folder, target);
    let log = folder.open_log().map_err(StartError::Folder)?;
    command.stdout(log.try_clone().map_err(StartError::Folder)?).stderr(log);
    let child =
        command.spawn().map_err(|error| StartError::Launcher(paths.launcher.display().to_string(), error))?;
    Process::started(child).map_err(StartError::Watch)
}

fn command(paths: &Paths, folder: &Folder, target: &str) -> Command {
    let mut command = Command::new(&paths.launcher);
    command.arg(launch::SUBCOMMAND).arg("--pid-file").arg(folder.pid_file());
    if let Some(cgroup) = &paths.cgroup {
        command.arg("--cgroup").arg(cgroup);
    }
    if paths.private_shm {
        command.arg("--private-shm");
    } else {
        command.arg("--no-private-shm");
    }
    // In the foreground, so that it stays the process that was started. One server for the processes of all users;
    // otherwise a second user's processes would wait until the first's have ended.
    command.arg("--").arg(&paths.program).args(["-f", "-multiuser-server"]);
    command
        .env("CUDA_MPS_PIPE_DIRECTORY", &folder.daemon)
        .env("CUDA_MPS_LOG_DIRECTORY", &folder.log_dir)
        .env("CUDA_VISIBLE_DEVICES", target)
        // The agent's DaemonSet sets this to save memory in the agent, which mostly waits; the daemon gets the default.
        .env_remove("MALLOC_ARENA_MAX")
        // So that the daemon does not end when its working directory is unmounted.
        .current_dir("/")
        .stdin(Stdio::null());
    command
}
