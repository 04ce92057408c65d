//! The hidden subcommand `mps-exec`: becomes a daemon that outlives the agent, with a `/dev/shm` of its own.
//!
//! It is a separate run of the executable. Nothing of this can be done between fork and exec without unsafe code, nor
//! in a process that has threads.

use super::procfs::ProcessId;
use clap::Parser;
use kerf_runtime::telemetry::chain;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::setsid;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

pub(super) const SUBCOMMAND: &str = "mps-exec";

/// Mount options of the daemon's `/dev/shm`: as large as a container's default, so that it cannot fill the node's
/// memory. No container has it.
const SHM_OPTIONS: &str = "mode=1777,size=64m";

/// The daemon's `/dev/shm`.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
struct Shm {
    /// A tmpfs of its own, in a mount namespace of the daemon's own.
    #[arg(long)]
    private_shm: bool,
    /// The existing one.
    #[arg(long)]
    no_private_shm: bool,
}

/// Becomes an MPS control daemon.
#[derive(Debug, Parser)]
#[command(name = SUBCOMMAND)]
struct Args {
    #[command(flatten)]
    shm: Shm,
    /// The file for the pid of the process that becomes the daemon.
    #[arg(long)]
    pid_file: PathBuf,
    /// The cgroup (v2) to go into.
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// The daemon and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Debug, thiserror::Error)]
enum LaunchError {
    #[error(transparent)]
    Args(#[from] clap::Error),
    #[error("the daemon runs already as process {0}")]
    Runs(u32),
    #[error("failed to note the daemon in {path}")]
    PidFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "failed to enter the cgroup {path}; mount the node's /sys/fs/cgroup writable into the agent's container"
    )]
    Cgroup {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to start a session")]
    Session(#[source] nix::Error),
    #[error(
        "failed to give the daemon its own /dev/shm ({step}); it takes CAP_SYS_ADMIN, which a privileged container has"
    )]
    Mount {
        /// The step that failed, for the text.
        step: &'static str,
        #[source]
        source: nix::Error,
    },
    #[error("failed to run {program}")]
    Exec {
        program: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Whether this process was started to become a daemon.
#[must_use]
pub fn is_asked() -> bool {
    std::env::args_os().nth(1).is_some_and(|first| first == SUBCOMMAND)
}

/// Becomes the daemon. Call it while the process has one thread, before any runtime is started.
///
/// Returns only if that failed. The reason is one line on the standard error: the last line of the daemon's log, which
/// the agent reports.
#[must_use]
pub fn become_daemon() -> ExitCode {
    let error = match Args::try_parse_from(std::env::args_os().skip(1)) {
        Ok(args) => args.run().err().unwrap_or_else(|| exec(&args.command)),
        Err(error) => error.into(),
    };
    eprintln!("{}", chain(&error));
    ExitCode::FAILURE
}

impl Args {
    /// Records the process before it becomes the daemon, so that an agent that is killed at any time finds it again.
    fn run(&self) -> Result<(), LaunchError> {
        // Leaves the agent's terminal and process group, so that nothing that ends the agent ends the daemon. The
        // daemon's servers form its group.
        setsid().map_err(LaunchError::Session)?;
        note(&self.pid_file)?;
        if let Some(cgroup) = &self.cgroup {
            enter(cgroup).map_err(|source| LaunchError::Cgroup { path: cgroup.clone(), source })?;
        }
        if !self.shm.private_shm {
            return Ok(());
        }
        mount_shm().map_err(|(step, source)| LaunchError::Mount { step, source })
    }
}

fn note(file: &Path) -> Result<(), LaunchError> {
    if let Some(other) = ProcessId::noted(file) {
        return Err(LaunchError::Runs(other.pid));
    }
    let own =
        ProcessId::from_pid(std::process::id()).ok_or_else(|| std::io::Error::other("/proc is not mounted"));
    own.and_then(|own| own.note(file))
        .map_err(|source| LaunchError::PidFile { path: file.to_owned(), source })
}

fn enter(cgroup: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(cgroup)?;
    // The kernel provides this file in a cgroup. Do not create it: a file of ours would move no process.
    OpenOptions::new().write(true).open(cgroup.join("cgroup.procs"))?.write_all(b"0")
}

fn mount_shm() -> Result<(), (&'static str, nix::Error)> {
    const NONE: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| ("unshare", error))?;
    // A slave receives what the node mounts later and propagates nothing back.
    let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    mount(NONE, "/", NONE, slave, NONE).map_err(|error| ("make / a slave", error))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("shm"), "/dev/shm", Some("tmpfs"), flags, Some(SHM_OPTIONS))
        .map_err(|error| ("mount a tmpfs", error))
}

fn exec(command: &[OsString]) -> LaunchError {
    let program = command.first().cloned().unwrap_or_default();
    let source = Command::new(&program).args(command.iter().skip(1)).exec();
    LaunchError::Exec { program: program.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_for_shared_memory_is_required() {
        let parse = |args: &[&str]| Args::try_parse_from([&[SUBCOMMAND], args].concat());
        let args =
            parse(&["--private-shm", "--pid-file", "/p", "--", "mps", "-f", "-multiuser-server"]).unwrap();
        assert_eq!(args.command, ["mps", "-f", "-multiuser-server"]);
        assert!(parse(&["--no-private-shm", "--pid-file", "/p", "--", "mps"]).is_ok());
        assert!(parse(&["--pid-file", "/p", "--", "mps"]).is_err());
        assert!(parse(&["--private-shm", "--no-private-shm", "--pid-file", "/p", "--", "mps"]).is_err());
        assert!(parse(&["--private-shm", "--pid-file", "/p"]).is_err());
    }

    #[test]
    fn a_folder_that_is_no_cgroup_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(enter(&folder.path().join("kerf")).is_err());
    }
}
