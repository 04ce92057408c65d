//! Carries out what a [`Daemon`] decides: folders, processes, control words, the compute mode. It decides nothing
//! itself.

use super::answer::Answer;
use super::control::{AskError, Control};
use super::daemon::{Action, Daemon, Found, Outcome, Step};
use super::folder::Folder;
use super::process::{Process, kill_left};
use super::start::start;
use super::word::Word;
use super::{ComputeModes, Observed, Paths, State, Status, Timings, Wanted};
use crate::gpu::ComputeMode;
use kerf_runtime::telemetry::chain;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// A target, with everything that is needed to reach its daemon.
pub(super) struct Target {
    name: String,
    paths: Arc<Paths>,
    timings: Timings,
    modes: Arc<dyn ComputeModes>,
    folder: Folder,
    control: Control,
    process: Option<Process>,
}

impl Target {
    pub fn new(name: &str, paths: Arc<Paths>, timings: Timings, modes: Arc<dyn ComputeModes>) -> Self {
        let folder = Folder::new(&paths.root, name);
        let control = Control {
            program: paths.program.clone(),
            pipe: folder.daemon.clone(),
            timeout: timings.control_timeout,
        };
        Self { name: name.to_owned(), paths, timings, modes, folder, control, process: None }
    }

    /// Reconciles the target's daemon. Returns once none is desired and everything of it is gone.
    ///
    /// Dropping the future leaves the daemon as it is.
    pub async fn keep(
        mut self,
        mut wanted: watch::Receiver<Option<Wanted>>,
        observed: watch::Sender<Observed>,
    ) {
        let mut daemon = Daemon::new(Instant::now(), self.timings.clone());
        loop {
            daemon.want(Instant::now(), wanted.borrow_and_update().clone());
            if let Some(how) = self.process.as_mut().and_then(Process::ended) {
                daemon.ended(Instant::now(), self.last_words(how));
                self.process = None;
            }
            let step = daemon.next(Instant::now());
            self.publish(daemon.status(), &observed);
            match step {
                Step::Do(action) => {
                    let outcome = self.perform(action).await;
                    daemon.done(Instant::now(), outcome);
                }
                Step::Wait(until) => tokio::select! {
                    () = tokio::time::sleep_until(until.into()) => {}
                    // Without a sender the desired state cannot change.
                    Ok(()) = wanted.changed() => {}
                    () = end(self.process.as_ref()) => {}
                },
                Step::End => return,
            }
        }
    }

    fn last_words(&self, how: String) -> String {
        match self.folder.last_words() {
            Some(line) => format!("{how}; it last wrote {line:?}"),
            None => how,
        }
    }

    fn publish(&self, status: Status, observed: &watch::Sender<Observed>) {
        observed.send_if_modified(|all| {
            let before = all.get(&self.name);
            let changed = before != Some(&status);
            if changed {
                if before.map(|before| &before.state) != Some(&status.state) {
                    self.log(&status);
                }
                all.insert(self.name.clone(), status);
            }
            changed
        });
    }

    fn log(&self, status: &Status) {
        let (target, generation) = (&self.name, status.generation);
        match &status.state {
            State::Ill { text, .. } | State::Restarting { text } => warn!(target, generation, "{text}"),
            state => info!(target, generation, ?state, "the MPS daemon's state"),
        }
    }

    async fn perform(&mut self, action: Action) -> Outcome {
        match action {
            Action::Inspect => Outcome::Inspected(self.inspect().await),
            Action::SetExclusive(exclusive) => {
                info!(target = self.name, exclusive, "setting the compute mode");
                Outcome::ModeSet(exclusive, self.set_exclusive(exclusive).await)
            }
            Action::Start(generation) => Outcome::Started(self.start(generation)),
            Action::Ask(word) => {
                let result = self.ask(word).await;
                match &result {
                    Ok(answer) if word.changes() => info!(target = self.name, %word, ?answer, "MPS control"),
                    Ok(answer) => debug!(target = self.name, %word, ?answer, "MPS control"),
                    Err(error) => debug!(target = self.name, %word, error = chain(error), "MPS control"),
                }
                self.trim_log(word);
                Outcome::Asked(word, result)
            }
            Action::Kill => Outcome::Killed(self.kill().await),
            Action::Remove => {
                let removed = self.folder.remove().map_err(|error| error.to_string());
                info!(target = self.name, ?removed, "removing the MPS daemon's folder");
                Outcome::Removed(removed)
            }
        }
    }

    /// Sends a word. A daemon that answers has its socket, which is then linked for clients.
    async fn ask(&self, word: Word) -> Result<Answer, AskError> {
        let answer = self.control.ask(word).await?;
        self.folder.show_socket().map_err(AskError::Socket)?;
        Ok(answer)
    }

    /// The folder is created first: it shows the next agent that the mode must be restored, and to which value.
    async fn set_exclusive(&self, exclusive: bool) -> Result<(), String> {
        let before = if let Some(before) = self.folder.mode_before() {
            before
        } else {
            let before = self.modes.mode(&self.name).await?;
            let noted = self.folder.write_mode(before);
            noted.map_err(|error| format!("failed to prepare the daemon's folder: {error}"))?;
            before
        };
        let mode = if exclusive { ComputeMode::ExclusiveProcess } else { before };
        self.modes.set(&self.name, mode).await
    }

    /// Adopts a daemon that an earlier agent started, or removes what an ended one left.
    async fn inspect(&mut self) -> Result<Found, String> {
        self.process = Process::adopt(&self.folder.pid_file()).map_err(|error| error.to_string())?;
        self.folder.listening().unwrap_or(&self.folder.daemon).clone_into(&mut self.control.pipe);
        if let Some(process) = &self.process {
            info!(target = self.name, pid = process.id(), "adopting the MPS daemon");
        } else {
            self.quit_stranger().await;
            kill_left(&self.folder.pid_file(), self.timings.kill_timeout).await?;
            self.folder.clear().map_err(|error| error.to_string())?;
        }
        Ok(Found { running: self.process.is_some(), generation: self.folder.generation() })
    }

    /// Ends a daemon that listens here without a known process, because it cannot be supervised.
    async fn quit_stranger(&self) {
        if self.folder.listening().is_some() {
            let within = self.timings.quit_within.as_secs();
            let result = self.control.ask(Word::Quit { within }).await;
            debug!(target = self.name, ?result, "asked the process at the pipe to quit");
        }
    }

    fn start(&mut self, generation: u64) -> Result<(), String> {
        let process =
            start(&self.paths, &self.folder, &self.name, generation).map_err(|error| chain(&error))?;
        info!(target = self.name, generation, pid = process.id(), "started the MPS daemon");
        self.control.pipe.clone_from(&self.folder.daemon);
        self.process = Some(process);
        Ok(())
    }

    async fn kill(&mut self) -> Result<(), String> {
        if let Some(process) = &mut self.process {
            warn!(target = self.name, pid = process.id(), "killing the MPS daemon");
            process.kill(self.timings.kill_timeout).await?;
            // Reap the process, because it may be this agent's child.
            process.ended();
        }
        self.process = None;
        Ok(())
    }

    /// Shortens the log, which grows with each word. Once per probe is enough, so it runs with the list of servers.
    fn trim_log(&self, word: Word) {
        if word == Word::ServerList
            && let Err(error) = self.folder.trim_log()
        {
            debug!(target = self.name, %error, "the MPS daemon's log cannot be shortened");
        }
    }
}

/// Waits for the end of the process; forever if there is none.
async fn end(process: Option<&Process>) {
    match process {
        Some(process) => process.end().await,
        None => std::future::pending().await,
    }
}
