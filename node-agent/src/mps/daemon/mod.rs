//! Decides the next action for one target's daemon, from its observed state. It does no I/O, and the caller passes the
//! time.
//!
//! ```text
//! Unknown ─inspect─▶ Down ─spawn─▶ Running ─(hung and unused, hopeless)─▶ Doomed ─kill─▶ Unknown
//!                     │              └─(undesired)──▶ Leaving ─(too slow)─▶ Doomed
//!                     └─(undesired; compute mode restored)─▶ Gone
//! ```

mod limits;
mod running;
mod server;
#[cfg(test)]
mod tests;
mod trouble;
#[cfg(test)]
mod world;

use super::answer::Answer;
use super::control::AskError;
use super::word::Word;
use super::{State, Status, Timings, Wanted};
use running::{Running, Turn};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use trouble::Trouble;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// To find out whether the daemon runs, and to remove what an ended one left.
    Inspect,
    SetExclusive(bool),
    /// To start the daemon, with this generation number.
    Start(u64),
    Ask(Word),
    Kill,
    Remove,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Inspected(Result<Found, String>),
    ModeSet(bool, Result<(), String>),
    Started(Result<(), String>),
    Asked(Word, Result<Answer, AskError>),
    Killed(Result<(), String>),
    Removed(Result<(), String>),
}

/// The result of [`Action::Inspect`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub running: bool,
    pub generation: u64,
}

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Do(Action),
    Wait(Instant),
    /// The target is gone for good, so no step follows.
    End,
}

#[derive(Debug)]
enum Phase {
    Unknown,
    Down,
    Running(Box<Running>),
    /// The daemon was asked to quit, and is killed after this time.
    Leaving(Instant),
    Doomed,
    Gone,
}

/// A daemon that ends repeatedly counts as ill: from the fourth end on, when the next backoff would exceed this.
const UNHEALTHY_BACKOFF: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Daemon {
    timings: Timings,
    wanted: Option<Wanted>,
    phase: Phase,
    generation: u64,
    /// The compute mode that was set since the last start; `None` if it is unknown.
    exclusive: Option<bool>,
    /// The mode is not set before this time.
    mode_at: Instant,
    /// The backoff after the next failure to set the mode.
    mode_backoff: Duration,
    /// A stopped daemon gets no action before this time.
    resume_at: Instant,
    /// The backoff after the daemon's next end.
    backoff: Duration,
    trouble: Option<Trouble>,
    mode_trouble: Option<Trouble>,
}

impl Daemon {
    /// A target of unknown state that needs no daemon.
    pub fn new(now: Instant, timings: Timings) -> Self {
        Self {
            backoff: timings.backoff_min,
            mode_backoff: timings.backoff_min,
            timings,
            wanted: None,
            phase: Phase::Unknown,
            generation: 0,
            exclusive: None,
            mode_at: now,
            resume_at: now,
            trouble: None,
            mode_trouble: None,
        }
    }

    /// Sets the desired daemon; with `None` an existing one ends.
    pub fn want(&mut self, now: Instant, wanted: Option<Wanted>) {
        if self.wanted == wanted {
            return;
        }
        let limits = |w: &Wanted| (w.limit, w.threads);
        if self.wanted.as_ref().map(limits) != wanted.as_ref().map(limits)
            && let Phase::Running(running) = &mut self.phase
        {
            running.wanted_changed(now);
        }
        if wanted.is_none() {
            // Earlier trouble is irrelevant for a daemon that must go.
            self.trouble = None;
            self.resume_at = now;
        }
        self.mode_at = now;
        self.mode_trouble = None;
        self.wanted = wanted;
    }

    pub fn status(&self) -> Status {
        let running = match &self.phase {
            Phase::Running(running) => Some(running.as_ref()),
            _ => None,
        };
        Status {
            state: self.state(running),
            generation: self.generation,
            servers: running.map_or_else(BTreeSet::new, Running::servers),
            clients: running.map_or_else(BTreeSet::new, Running::clients),
        }
    }

    fn state(&self, running: Option<&Running>) -> State {
        let of_running =
            running.filter(|_| self.wanted.is_some()).and_then(|running| running.trouble.as_ref());
        if let Some(trouble) = of_running.or(self.mode_trouble.as_ref()).or(self.trouble.as_ref()) {
            let text = trouble.to_string();
            let is_brief = matches!(trouble, Trouble::Ended(_)) && self.backoff <= UNHEALTHY_BACKOFF;
            if is_brief {
                return State::Restarting { text };
            }
            return State::Ill { text, fault: trouble.is_fault() };
        }
        let Some(wanted) = &self.wanted else { return State::Stopping };
        let Some(running) = running else { return State::Starting };
        match (running.verified(), running.last_verified()) {
            (Some((limit, threads)), _) if self.exclusive == Some(wanted.exclusive) => {
                State::Serving { limit, threads }
            }
            (_, Some((limit, threads))) => State::Adjusting { limit, threads },
            (_, None) => State::Starting,
        }
    }

    pub fn next(&mut self, now: Instant) -> Step {
        if let Some(step) = self.next_of_mode(now) {
            return step;
        }
        if !matches!(self.phase, Phase::Running(_)) && now < self.resume_at {
            return Step::Wait(self.resume_at);
        }
        match (&mut self.phase, &self.wanted) {
            (Phase::Unknown, _) => Step::Do(Action::Inspect),
            (Phase::Down, Some(_)) => Step::Do(Action::Start(self.generation + 1)),
            (Phase::Down, None) => Step::Do(Action::Remove),
            (Phase::Running(_), None) => {
                let within = self.timings.quit_within.as_secs();
                // The word itself may take this long, because `quit` answers only when the clients have ended.
                self.phase = Phase::Leaving(now + self.timings.quit_within + self.timings.control_timeout);
                Step::Do(Action::Ask(Word::Quit { within }))
            }
            (Phase::Running(running), Some(wanted)) => {
                let turn = running.next(now, wanted, &self.timings);
                self.turn(now, turn)
            }
            (Phase::Leaving(kill_at), _) if now < *kill_at => Step::Wait(*kill_at),
            (Phase::Leaving(_) | Phase::Doomed, _) => Step::Do(Action::Kill),
            (Phase::Gone, _) => Step::End,
        }
    }

    fn turn(&mut self, now: Instant, turn: Turn) -> Step {
        match turn {
            Turn::Ask(word) => Step::Do(Action::Ask(word)),
            Turn::Wait(until) => {
                if matches!(&self.phase, Phase::Running(running) if running.verified().is_some()) {
                    self.trouble = None;
                }
                let mode_is_set = self.exclusive == self.wanted.as_ref().map(|wanted| wanted.exclusive);
                // Wake for the next try of the mode as well, so that it does not wait for the next probe.
                Step::Wait(if mode_is_set { until } else { until.min(self.mode_at) })
            }
            Turn::Restart(trouble) => {
                self.reset_backoff(now);
                self.trouble = Some(trouble);
                self.phase = Phase::Doomed;
                self.resume_at = now;
                Step::Do(Action::Kill)
            }
        }
    }

    /// The mode is set before the daemon starts, so that no process bypasses the daemon. It is changed while the daemon
    /// runs, and restored after the daemon has ended.
    fn next_of_mode(&self, now: Instant) -> Option<Step> {
        let exclusive = match (&self.phase, &self.wanted) {
            (Phase::Down | Phase::Running(_), Some(wanted)) => wanted.exclusive,
            (Phase::Down, None) => false,
            _ => return None,
        };
        if self.exclusive == Some(exclusive) {
            return None;
        }
        if now >= self.mode_at {
            return Some(Step::Do(Action::SetExclusive(exclusive)));
        }
        matches!(self.phase, Phase::Down).then_some(Step::Wait(self.mode_at))
    }

    pub fn done(&mut self, now: Instant, outcome: Outcome) {
        match outcome {
            Outcome::Inspected(Ok(found)) => self.inspected(now, found),
            Outcome::Inspected(Err(text)) | Outcome::Removed(Err(text)) => {
                self.try_later(now, Trouble::Remains(text));
            }
            Outcome::ModeSet(exclusive, result) => self.mode_set(now, exclusive, result),
            Outcome::Started(Ok(())) => {
                self.generation += 1;
                self.phase = Phase::Running(Box::new(Running::new(now, &self.timings)));
            }
            Outcome::Started(Err(text)) => {
                self.trouble = Some(Trouble::Start(text));
                self.ended_at(now);
            }
            Outcome::Asked(word, result) => self.asked(now, word, result),
            Outcome::Killed(Ok(())) => self.ended_at(now),
            Outcome::Killed(Err(text)) => self.try_later(now, Trouble::Unkillable(text)),
            Outcome::Removed(Ok(())) if self.wanted.is_none() => self.phase = Phase::Gone,
            // Meanwhile a daemon is desired again. The count was in the removed folder, so it starts again.
            Outcome::Removed(Ok(())) => self.generation = 0,
        }
    }

    fn inspected(&mut self, now: Instant, found: Found) {
        self.generation = found.generation;
        self.phase = if found.running {
            Phase::Running(Box::new(Running::new(now, &self.timings)))
        } else {
            Phase::Down
        };
    }

    fn mode_set(&mut self, now: Instant, exclusive: bool, result: Result<(), String>) {
        self.mode_trouble = match result {
            Ok(()) => {
                self.exclusive = Some(exclusive);
                self.mode_backoff = self.timings.backoff_min;
                None
            }
            Err(reason) => {
                self.mode_at = now + self.mode_backoff;
                self.mode_backoff = (self.mode_backoff * 2).min(self.timings.probe_every);
                Some(Trouble::Mode { exclusive, reason })
            }
        };
    }

    fn asked(&mut self, now: Instant, word: Word, result: Result<Answer, AskError>) {
        let Phase::Running(running) = &mut self.phase else { return };
        match result {
            Ok(answer) => running.answered(now, word, &answer),
            Err(error) => running.failed(now, word, &error, &self.timings),
        }
    }

    /// The daemon's process has ended, by itself or on request.
    pub fn ended(&mut self, now: Instant, how: String) {
        match self.phase {
            Phase::Running(_) => {
                self.reset_backoff(now);
                self.trouble = Some(Trouble::Ended(how));
            }
            Phase::Leaving(_) | Phase::Doomed => {}
            Phase::Unknown | Phase::Down | Phase::Gone => return,
        }
        self.ended_at(now);
    }

    fn ended_at(&mut self, now: Instant) {
        // Read the state before the next start, because the ended daemon may have left servers and files.
        self.phase = Phase::Unknown;
        // Whatever ended the daemon may have changed the mode too.
        self.exclusive = None;
        self.mode_at = now;
        self.resume_at = now;
        if self.wanted.is_some() {
            self.resume_at = now + self.backoff;
            self.backoff = (self.backoff * 2).min(self.timings.backoff_max);
        }
    }

    /// Resets the backoff of a daemon that served for long, because it does not fail at every start.
    fn reset_backoff(&mut self, now: Instant) {
        let Phase::Running(running) = &self.phase else { return };
        if running.serving_since.is_some_and(|since| now >= since + self.timings.backoff_max) {
            self.backoff = self.timings.backoff_min;
        }
    }

    fn try_later(&mut self, now: Instant, trouble: Trouble) {
        self.trouble = Some(trouble);
        self.resume_at = now + self.timings.probe_every;
    }
}
