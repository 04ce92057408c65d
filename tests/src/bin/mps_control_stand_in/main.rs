//! A stand-in for `nvidia-cuda-mps-control`: the daemon (`-f`, `-d`) and the control client (commands on
//! standard input).
//!
//! [`kerf_tests::mps`] describes the orders that it reads and the events that it writes. It answers as driver
//! 580 did on an H200. Its servers are numbers, each with a process that does nothing.
#![forbid(unsafe_code)]

mod daemon;
mod limits;
mod peer;
mod processes;
mod servers;
mod words;

use anyhow::{Context as _, bail};
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

/// How often `-d` checks whether the daemon accepts connections.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let pipe = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".into());
    let pipe = PathBuf::from(pipe);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, pipe] = &arguments[..]
        && first == processes::ARGUMENT
    {
        return processes::run(Path::new(pipe));
    }
    for argument in &arguments {
        if !["-f", "-d", "-multiuser-server"].contains(&argument.as_str()) {
            bail!("Unknown option {argument}");
        }
    }
    if arguments.iter().any(|argument| argument == "-f") {
        return daemon::run(&pipe, &arguments);
    }
    if arguments.iter().any(|argument| argument == "-d") {
        return detach(&pipe, &arguments);
    }
    control(&pipe)
}

/// Starts the daemon in the background, and returns once it accepts commands.
fn detach(pipe: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let rest = arguments.iter().filter(|argument| *argument != "-d");
    let mut daemon = Command::new(std::env::current_exe()?);
    daemon.arg("-f").args(rest).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = daemon.spawn().context("failed to start the daemon")?;
    while UnixStream::connect(pipe.join("control")).is_err() {
        if let Some(status) = daemon.try_wait()? {
            bail!("the daemon ended at once, {status}");
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The control client: sends the commands, and prints the daemon's answers.
fn control(pipe: &Path) -> anyhow::Result<()> {
    let Ok(mut stream) = UnixStream::connect(pipe.join("control")) else {
        bail!("Cannot find MPS control daemon process");
    };
    let mut words = String::new();
    std::io::stdin().read_to_string(&mut words)?;
    // A daemon that refuses this user does not read; its answer says why.
    let _ = stream.write_all(words.as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    // A daemon that is killed meanwhile does not answer, and the real client then prints nothing either.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    std::io::stdout().write_all(&answer)?;
    Ok(())
}
