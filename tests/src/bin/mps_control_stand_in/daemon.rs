//! The daemon. It has one thread and handles one command at a time, so a command that hangs blocks all
//! others, as in the real one.

use crate::peer;
use crate::processes::Processes;
use crate::servers::Servers;
use crate::words::{self, Done};
use anyhow::{Context as _, bail};
use kerf_tests::mps::{Event, Fault, Files, Orders, WordFault, name};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How often the daemon reads its orders.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs until a command makes it quit.
pub fn run(pipe: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let socket = pipe.join("control");
    if UnixStream::connect(&socket).is_ok() {
        bail!("An instance of this daemon is already running");
    }
    let files = Files::from_pipe(pipe).context("the pipe directory is not <root>/<target>/pipe")?;
    // A killed daemon leaves its socket behind, and no daemon answers at it.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).context("failed to listen")?;
    // Every user may connect, because the daemon checks the peer's credentials itself.
    fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
    let pid_file = pipe.join("nvidia-cuda-mps-control.pid");
    fs::write(&pid_file, std::process::id().to_string())?;
    files.note(&Event::Started { daemon: std::process::id(), arguments: arguments.to_vec() })?;
    let (servers, processes) = (Servers::new(), Processes::new(pipe));
    let mut daemon = Daemon { pipe: pipe.to_owned(), files, servers, processes, quit: None };
    while !daemon.has_quit()? {
        if is_readable(&listener)? {
            daemon.serve(&listener.accept()?.0)?;
        }
    }
    let _ = fs::remove_file(pid_file);
    Ok(())
}

/// Waits one tick for a connection.
fn is_readable(listener: &UnixListener) -> anyhow::Result<bool> {
    let tick = Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.subsec_nanos().into() };
    let mut sockets = [PollFd::new(listener, PollFlags::IN)];
    Ok(poll(&mut sockets, Some(&tick))? > 0)
}

struct Daemon {
    pipe: PathBuf,
    files: Files,
    servers: Servers,
    processes: Processes,
    /// Set by `quit`: the daemon ends once its clients have ended, and at this time at the latest.
    quit: Option<Instant>,
}

impl Daemon {
    /// Applies orders and timers, and returns whether to end. If the pipe folder is gone, the test has ended,
    /// so the daemon ends too.
    fn has_quit(&mut self) -> anyhow::Result<bool> {
        if !self.pipe.exists() {
            return Ok(true);
        }
        let orders = self.files.orders()?;
        self.servers.pass(&orders, &self.files)?;
        self.processes.follow(self.servers.all.keys())?;
        Ok(self.quit.is_some_and(|until| !self.servers.have_clients() || Instant::now() >= until))
    }

    /// Serves a connection. A peer without privileges gets one refusal, and its commands are not read.
    fn serve(&mut self, mut stream: &UnixStream) -> anyhow::Result<()> {
        if !peer::is_obeyed(stream)? {
            let _ = stream.write_all(peer::REFUSAL.as_bytes());
            return Ok(());
        }
        for line in BufReader::new(stream).lines() {
            // A client that was killed sends no further command.
            let Ok(line) = line else { return Ok(()) };
            // Clients that connected before this command must count, so orders are applied first.
            self.has_quit()?;
            if !line.trim().is_empty() {
                self.hear(line.trim(), stream)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, line: &str, mut stream: &UnixStream) -> anyhow::Result<()> {
        let orders = self.files.orders()?;
        let fault = self.fault_of(line, &orders)?;
        self.files.note(&Event::Word {
            word: line.to_owned(),
            serial: orders.serial,
            fault: fault.as_ref().map(|fault| fault.fault.clone()),
        })?;
        let Some(WordFault { fault, .. }) = fault else {
            let text = self.obey(line);
            let _ = stream.write_all(text.as_bytes());
            return Ok(());
        };
        let text = match fault {
            Fault::Answer(text) => text + "\n",
            Fault::HangBefore => {
                self.hang(line, &fault)?;
                self.obey(line)
            }
            Fault::HangAfter => {
                let text = self.obey(line);
                self.hang(line, &fault)?;
                text
            }
            Fault::DieBefore => return die(),
            Fault::DieAfter => {
                let text = self.obey(line);
                let _ = stream.write_all(text.as_bytes());
                return die();
            }
        };
        let _ = stream.write_all(text.as_bytes());
        Ok(())
    }

    /// The fault that the orders set for this command, if it has not occurred often enough.
    fn fault_of(&self, line: &str, orders: &Orders) -> anyhow::Result<Option<WordFault>> {
        let Some(ordered) = orders.faults.iter().find(|fault| fault.word == name(line)) else {
            return Ok(None);
        };
        let Some(times) = ordered.times else { return Ok(Some(ordered.clone())) };
        let struck = |event: &&Event| {
            matches!(event, Event::Word { word, serial, fault: Some(fault) }
                if *serial == orders.serial && name(word) == ordered.word && *fault == ordered.fault)
        };
        let events = self.files.events()?;
        let again = events.iter().filter(struck).count() < usize::try_from(times)?;
        Ok(again.then(|| ordered.clone()))
    }

    fn obey(&mut self, line: &str) -> String {
        match words::answer(&mut self.servers, line) {
            Done::Answer(text) => text,
            Done::Quit { within } => {
                self.quit = Some(Instant::now() + within);
                String::new()
            }
        }
    }

    /// Blocks until the orders no longer have this fault.
    fn hang(&self, line: &str, fault: &Fault) -> anyhow::Result<()> {
        let hangs = |orders: &Orders| {
            orders.faults.iter().any(|ordered| ordered.word == name(line) && ordered.fault == *fault)
        };
        while self.pipe.exists() && hangs(&self.files.orders()?) {
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

fn die() -> anyhow::Result<()> {
    kill_process(getpid(), Signal::KILL)?;
    bail!("survived SIGKILL")
}
