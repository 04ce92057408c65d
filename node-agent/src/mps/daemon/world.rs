//! A simulation for tests of [`Daemon`](super::Daemon), in virtual time: a control daemon with servers, clients and
//! faults.

use super::{Action, Daemon, Found, Outcome, Step};
use crate::mps::answer::{Answer, AnswerError, MemoryReading, Percentage, ServerStatus};
use crate::mps::control::AskError;
use crate::mps::word::{Scope, Word};
use crate::mps::{State, Timings, Wanted};
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const WORD_DELAY: Duration = Duration::from_millis(2);

/// The limits of a server, or the defaults for future ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Held {
    pub limit: MemoryMib,
    pub threads: u8,
}

#[derive(Debug, Clone)]
pub(super) struct SimServer {
    pub held: Held,
    pub ready_at: Instant,
    pub clients: BTreeSet<u32>,
    pub fault: bool,
    /// Whether it stays in fault when its clients have left.
    pub stuck: bool,
    pub ends_at: Option<Instant>,
}

#[derive(Debug, Clone)]
pub(super) struct Process {
    pub defaults: Held,
    pub servers: BTreeMap<u32, SimServer>,
    /// It accepts connections and never answers.
    pub hung: bool,
    answers_at: Instant,
    quits_at: Option<Instant>,
}

/// How often each of these actions fails from now on.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub refused: u32,
    pub timeouts: u32,
    pub modes: u32,
    pub starts: u32,
    pub kills: u32,
    pub inspections: u32,
    pub removals: u32,
    /// Limits that are set without effect.
    pub ignored: u32,
}

pub(super) struct World {
    pub now: Instant,
    pub timings: Timings,
    pub process: Option<Process>,
    pub exclusive: bool,
    pub generation: u64,
    pub faults: Faults,
    next_server: u32,
    /// All actions of the daemon, in order.
    pub actions: Vec<Action>,
    pub ended: bool,
}

fn fail<T>(text: &str) -> Result<T, String> {
    Err(text.to_owned())
}

fn one(count: &mut u32) -> bool {
    let hit = *count > 0;
    *count = count.saturating_sub(1);
    hit
}

impl World {
    pub fn new(timings: Timings) -> Self {
        Self {
            now: Instant::now(),
            timings,
            process: None,
            exclusive: false,
            generation: 0,
            faults: Faults::default(),
            next_server: 1000,
            actions: Vec::new(),
            ended: false,
        }
    }

    /// Runs `daemon` until `until`, and passes every state on the way to `look`.
    pub fn run(&mut self, daemon: &mut Daemon, until: Instant, mut look: impl FnMut(&World, &State)) {
        let mut steps = 0;
        while self.now < until {
            steps += 1;
            assert!(
                steps < 100_000,
                "no time passes: {:?}",
                self.actions.iter().rev().take(9).collect::<Vec<_>>()
            );
            if self.pass() {
                daemon.ended(self.now, "exit status 0".to_owned());
            }
            let step = daemon.next(self.now);
            look(self, &daemon.status().state);
            match step {
                Step::Do(action) => {
                    self.actions.push(action.clone());
                    let outcome = self.perform(&action);
                    daemon.done(self.now, outcome);
                }
                Step::Wait(at) => self.now = at.max(self.now).min(self.next_event()).min(until),
                Step::End => {
                    self.ended = true;
                    return;
                }
            }
        }
    }

    /// When the next event happens without an action.
    fn next_event(&self) -> Instant {
        let quits =
            self.process.as_ref().filter(|process| !process.hung).and_then(|process| process.quits_at);
        quits.unwrap_or(self.now + Duration::from_hours(1)).max(self.now)
    }

    /// Applies the events until now; returns whether the daemon ended.
    fn pass(&mut self) -> bool {
        let now = self.now;
        let Some(process) = &mut self.process else { return false };
        process.servers.retain(|_, server| server.ends_at.is_none_or(|at| now < at));
        for server in process.servers.values_mut() {
            server.fault &= server.stuck || !server.clients.is_empty();
        }
        let quits = process.quits_at.is_some_and(|at| now >= at) && !process.hung;
        if quits {
            self.process = None;
        }
        quits
    }

    /// Connects a client; the first one starts a server.
    pub fn connect(&mut self, client: u32) {
        let (now, next) = (self.now, &mut self.next_server);
        let Some(process) = &mut self.process else { return };
        process.start_server(now, next);
        if let Some(server) = process.servers.values_mut().find(|s| !s.fault && s.ends_at.is_none()) {
            server.clients.insert(client);
        }
    }

    pub fn disconnect(&mut self) {
        let servers = self.process.iter_mut().flat_map(|process| process.servers.values_mut());
        servers.for_each(|server| server.clients.clear());
    }

    fn perform(&mut self, action: &Action) -> Outcome {
        self.now += WORD_DELAY;
        match *action {
            Action::Inspect if one(&mut self.faults.inspections) => Outcome::Inspected(fail("EIO")),
            Action::Inspect => {
                Outcome::Inspected(Ok(Found { running: self.process.is_some(), generation: self.generation }))
            }
            Action::SetExclusive(mode) if one(&mut self.faults.modes) => {
                Outcome::ModeSet(mode, fail("in use"))
            }
            Action::SetExclusive(mode) => {
                self.exclusive = mode;
                Outcome::ModeSet(mode, Ok(()))
            }
            Action::Start(_) if one(&mut self.faults.starts) => Outcome::Started(fail("ENOMEM")),
            Action::Start(generation) => {
                assert!(self.process.is_none(), "a second daemon is started");
                self.generation = generation;
                self.process = Some(Process::new(self.now));
                Outcome::Started(Ok(()))
            }
            Action::Kill if one(&mut self.faults.kills) => Outcome::Killed(fail("it stays")),
            Action::Kill => {
                self.process = None;
                Outcome::Killed(Ok(()))
            }
            Action::Remove if one(&mut self.faults.removals) => Outcome::Removed(fail("EBUSY")),
            Action::Remove => {
                self.generation = 0;
                Outcome::Removed(Ok(()))
            }
            Action::Ask(word) => Outcome::Asked(word, self.answer(word)),
        }
    }

    fn answer(&mut self, word: Word) -> Result<Answer, AskError> {
        self.pass();
        let now = self.now;
        let Some(process) = &mut self.process else { return Err(AskError::NoDaemon) };
        if now < process.answers_at {
            return Err(AskError::NoDaemon);
        }
        if process.hung || one(&mut self.faults.timeouts) {
            self.now += self.timings.control_timeout;
            return Err(AskError::Timeout(self.timings.control_timeout));
        }
        if one(&mut self.faults.refused) {
            return Err(AnswerError::Refused("no".to_owned()).into());
        }
        let ignored =
            matches!(word, Word::SetMemory(..) | Word::SetThreads(..)) && one(&mut self.faults.ignored);
        if ignored {
            Ok(Answer::Done)
        } else {
            process.answer(now, word, &mut self.next_server).map_err(AskError::from)
        }
    }

    /// Whether the daemon and all of its servers hold clients to these limits.
    pub fn holds(&self, wanted: &Wanted) -> bool {
        let wanted_held = Held { limit: wanted.limit, threads: wanted.threads };
        self.process.as_ref().is_some_and(|process| {
            let mut servers = process.servers.values().filter(|server| server.ends_at.is_none());
            process.defaults == wanted_held && servers.all(|server| server.held == wanted_held)
        })
    }
}

impl Process {
    pub fn new(now: Instant) -> Self {
        Self {
            defaults: Held { limit: MemoryMib(0), threads: 100 },
            servers: BTreeMap::new(),
            hung: false,
            answers_at: now + Duration::from_millis(45),
            quits_at: None,
        }
    }

    fn start_server(&mut self, now: Instant, next: &mut u32) {
        if self.servers.values().any(|server| server.ends_at.is_none()) {
            return;
        }
        *next += 1;
        let server = SimServer {
            held: self.defaults,
            ready_at: now + Duration::from_millis(250),
            clients: BTreeSet::new(),
            fault: false,
            stuck: false,
            ends_at: None,
        };
        self.servers.insert(*next, server);
    }

    fn answer(&mut self, now: Instant, word: Word, next: &mut u32) -> Result<Answer, AnswerError> {
        match word {
            Word::ServerList => return Ok(Answer::Servers(self.servers.keys().copied().collect())),
            Word::StartServer => self.start_server(now, next),
            Word::Quit { within } => self.quits_at = Some(now + Duration::from_secs(within)),
            Word::Memory(Scope::Default) => return Ok(memory(self.defaults)),
            Word::Threads(Scope::Default) => return Ok(threads(self.defaults)),
            Word::SetMemory(Scope::Default, limit) => self.defaults.limit = limit,
            Word::SetThreads(Scope::Default, percent) => self.defaults.threads = percent,
            word => return self.answer_of_server(now, word),
        }
        Ok(Answer::Done)
    }

    fn answer_of_server(&mut self, now: Instant, word: Word) -> Result<Answer, AnswerError> {
        let own = word.server().unwrap();
        let server = self.servers.get_mut(&own).ok_or(AnswerError::ServerGone(own))?;
        match word {
            Word::ServerStatus(_) => {
                return Ok(Answer::Status(match server {
                    s if s.fault || s.ends_at.is_some() => ServerStatus::Fault,
                    s if now < s.ready_at => ServerStatus::Initializing,
                    _ => ServerStatus::Active,
                }));
            }
            Word::ClientList(_) => return Ok(Answer::Clients(server.clients.iter().copied().collect())),
            Word::Memory(_) => return Ok(memory(server.held)),
            Word::Threads(_) => return Ok(threads(server.held)),
            Word::SetMemory(_, limit) => server.held.limit = limit,
            Word::SetThreads(_, percent) => server.held.threads = percent,
            Word::ShutdownServer(_) => {
                let slow = if server.clients.is_empty() { 5 } else { 1500 };
                server.ends_at.get_or_insert(now + Duration::from_millis(slow));
            }
            other => panic!("{other} is not said by the supervisor"),
        }
        Ok(Answer::Done)
    }
}

fn memory(held: Held) -> Answer {
    let limit = MemoryReading::Limit { amount: held.limit.0, unit: MemoryMib(1) };
    Answer::Memory(if held.limit.is_zero() { MemoryReading::Unlimited } else { limit })
}

fn threads(held: Held) -> Answer {
    Answer::Threads(Percentage(f64::from(held.threads)))
}
