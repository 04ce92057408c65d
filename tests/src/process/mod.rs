//! Child processes of tests: each has a log file, can be killed and restarted, and ends with the test
//! process.
//!
//! This module is independent of Kubernetes, and reads only its own log files.

mod log;
mod spawner;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::binaries::{self, BinaryError};

pub(crate) use log::tail;

/// Lines of a child's log in an error: enough for the last words of a Go program.
const TAIL_LINES: usize = 25;

/// How often [`Child::terminate`] checks whether the child has ended.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Base of the exit code of a process that a signal ended, as in shells and container runtimes.
pub(crate) const SIGNAL_EXIT: i32 = 128;

/// Why a child could not be started, signalled or waited for.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The wrapper that ties a child to its parent is not built.
    #[error("failed to find the wrapper that ends children with their parent")]
    Wrapper(#[from] BinaryError),
    #[error("failed to open the log {path}")]
    Log {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to start {name}")]
    Spawn {
        name: String,
        #[source]
        source: io::Error,
    },
    /// The program cannot be signalled or waited for.
    #[error("failed to signal or wait for {name}")]
    Signal {
        name: String,
        #[source]
        source: io::Error,
    },
}

/// A program with everything that is needed to start it again.
#[derive(Debug, Clone)]
pub struct Program {
    name: String,
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    log: PathBuf,
}

impl Program {
    /// A program without arguments. Its output goes to `<log_folder>/<name>.log`.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>, log_folder: &Path) -> Self {
        let name = name.into();
        let log = log_folder.join(format!("{name}.log"));
        Self { name, path: path.into(), arguments: Vec::new(), environment: Vec::new(), log }
    }

    /// The same program with another name and its own log.
    #[must_use]
    pub fn named(self, name: impl Into<String>, log_folder: &Path) -> Self {
        let name = name.into();
        let log = log_folder.join(format!("{name}.log"));
        Self { name, log, ..self }
    }

    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets one variable on top of the inherited environment.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((key.into(), value.into()));
        self
    }

    /// The log file that it will have.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Starts the program. It is killed when the returned value is dropped, and by the kernel when this
    /// process ends.
    pub fn spawn(self) -> Result<Child, ProcessError> {
        let process = self.start()?;
        Ok(Child { program: self, process, exited: None })
    }

    /// [`Program::spawn`] on a blocking thread, because a start may take some milliseconds.
    pub(crate) async fn spawn_blocking(self) -> Result<Child, ProcessError> {
        match tokio::task::spawn_blocking(move || self.spawn()).await {
            Ok(child) => child,
            Err(stopped) => std::panic::resume_unwind(stopped.into_panic()),
        }
    }

    fn start(&self) -> Result<std::process::Child, ProcessError> {
        let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
        let log = open(&self.log).and_then(|log| Ok((log.try_clone()?, log)));
        let (stdout, stderr) = log.map_err(|source| ProcessError::Log { path: self.log.clone(), source })?;
        let mut command = Command::new(binaries::ours("die_with_parent")?);
        // The wrapper compares this id with its parent's, in case this process ends before it runs.
        command.arg(std::process::id().to_string()).arg(&self.path).args(&self.arguments);
        // The last lines of a log are an error's causes; a backtrace would push them out.
        command.env("RUST_LIB_BACKTRACE", "0");
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        spawner::spawn(command).map_err(|source| ProcessError::Spawn { name: self.name.clone(), source })
    }
}

#[derive(Debug)]
pub struct Child {
    program: Program,
    process: std::process::Child,
    exited: Option<ExitStatus>,
}

impl Child {
    /// The name given to [`Program::new`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.program.name
    }

    /// The process id. After the process has ended it is that of the last run.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The log file. Restarts append to it.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.program.log
    }

    /// The last lines of the log, for error messages.
    #[must_use]
    pub fn log_tail(&self) -> String {
        log::tail(&self.program.log, TAIL_LINES)
    }

    /// How the process ended; `None` while it runs.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>, ProcessError> {
        if self.exited.is_none() {
            self.exited = self.process.try_wait().map_err(|source| self.signal_error(source))?;
        }
        Ok(self.exited)
    }

    /// The exit code as container runtimes report it, with 128 added to the number of a signal; `None` while the
    /// process runs.
    pub(crate) fn exit_code(&mut self) -> Result<Option<i32>, ProcessError> {
        let status = self.exited()?;
        Ok(status
            .map(|status| status.code().unwrap_or_else(|| SIGNAL_EXIT + status.signal().unwrap_or_default())))
    }

    /// Sends a signal, for example `STOP` and `CONT` to make a process hang for a while. It does nothing if
    /// the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<(), ProcessError> {
        // Only a child that has not been waited for still owns its process id.
        if self.exited()?.is_some() {
            return Ok(());
        }
        kill_process(Pid::from_child(&self.process), signal).map_err(|error| self.signal_error(error.into()))
    }

    /// Kills the process (`KILL`) and waits for its end. It does nothing if the process has ended.
    pub fn kill(&mut self) -> Result<(), ProcessError> {
        self.signal(Signal::KILL)?;
        if self.exited.is_none() {
            self.exited = Some(self.process.wait().map_err(|source| self.signal_error(source))?);
        }
        Ok(())
    }

    /// Sends `TERM`, waits up to `timeout`, then kills the process. Returns true if it ended by itself.
    /// Blocks the calling thread.
    pub fn terminate(&mut self, timeout: Duration) -> Result<bool, ProcessError> {
        self.signal(Signal::TERM)?;
        let began = Instant::now();
        while self.exited()?.is_none() {
            if began.elapsed() >= timeout {
                self.kill()?;
                return Ok(false);
            }
            thread::sleep(EXIT_POLL_INTERVAL);
        }
        Ok(true)
    }

    /// Kills the process if it runs, and starts the same program again.
    pub fn restart(&mut self) -> Result<(), ProcessError> {
        self.kill()?;
        self.process = self.program.start()?;
        self.exited = None;
        Ok(())
    }

    fn signal_error(&self, source: io::Error) -> ProcessError {
        ProcessError::Signal { name: self.program.name.clone(), source }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // An error cannot be reported here. The parent death signal ends the process if this fails.
        let _ = self.kill();
    }
}
