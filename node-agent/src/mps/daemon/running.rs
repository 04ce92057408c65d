//! The observed state of a running daemon, read in rounds: its servers, their states, and all limits.

use super::limits::{Limits, Need};
use super::server::{Next, Server};
use super::trouble::Trouble;
use crate::mps::answer::{Answer, AnswerError, MemoryReading};
use crate::mps::control::AskError;
use crate::mps::word::{Scope, Word};
use crate::mps::{Timings, Wanted};
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Limits that were read back from the daemon and all its servers.
pub(super) type Verified = (MemoryMib, u8);

#[derive(Debug, PartialEq)]
pub(super) enum Turn {
    Ask(Word),
    Wait(Instant),
    /// Only a new daemon helps.
    Restart(Trouble),
}

#[derive(Debug)]
pub(super) struct Running {
    /// Whether it had no limits when it was first queried: its servers without limits then belong to clients that came
    /// too early.
    bare: Option<bool>,
    ready_by: Instant,
    answered: bool,
    failures: u32,
    /// Nothing is asked before this time.
    resume_at: Instant,
    /// Whether this round has listed the servers.
    listed: bool,
    /// Whether this round has requested the start of a server.
    server_asked: bool,
    reread_at: Instant,
    defaults: Limits,
    servers: BTreeMap<u32, Server>,
    /// The limits that were read back from all, and not set since.
    verified: Option<Verified>,
    /// The limits that were verified last, whether or not they still hold.
    last_verified: Option<Verified>,
    pub serving_since: Option<Instant>,
    pub trouble: Option<Trouble>,
    /// Why a restart is needed. It waits until no process of a pod runs on the GPU.
    hopeless: Option<Trouble>,
}

impl Running {
    /// A daemon that was just started, or found running.
    pub fn new(now: Instant, timings: &Timings) -> Self {
        Self {
            bare: None,
            ready_by: now + timings.start_timeout,
            answered: false,
            failures: 0,
            resume_at: now,
            listed: false,
            server_asked: false,
            reread_at: now + timings.reread_every,
            defaults: Limits::default(),
            servers: BTreeMap::new(),
            verified: None,
            last_verified: None,
            serving_since: None,
            trouble: None,
            hopeless: None,
        }
    }

    pub fn verified(&self) -> Option<Verified> {
        self.verified
    }

    pub fn last_verified(&self) -> Option<Verified> {
        self.last_verified
    }

    pub fn servers(&self) -> BTreeSet<u32> {
        self.servers.keys().copied().collect()
    }

    pub fn clients(&self) -> BTreeSet<u32> {
        self.servers.values().flat_map(|server| &server.clients).copied().collect()
    }

    /// Starts a round for the changed limits.
    pub fn wanted_changed(&mut self, now: Instant) {
        self.verified = None;
        // A daemon that has not answered yet keeps its own interval.
        if self.answered && self.failures == 0 {
            self.resume_at = now;
        }
        self.defaults.retry();
        self.servers.values_mut().for_each(|server| server.limits.retry());
    }

    pub fn next(&mut self, now: Instant, wanted: &Wanted, timings: &Timings) -> Turn {
        if let Some(trouble) = &self.hopeless {
            if !wanted.in_use {
                return Turn::Restart(trouble.clone());
            }
            // The daemon is not killed: its server serves the clients without it. Otherwise a container that floods the
            // daemon with words could end its neighbours' work.
            self.trouble = Some(Trouble::Unresponsive);
        }
        if now < self.resume_at {
            return Turn::Wait(self.resume_at);
        }
        if !self.listed {
            return Turn::Ask(Word::ServerList);
        }
        match self.defaults.need(Scope::Default, wanted) {
            Need::Nothing => self.next_of_servers(now, wanted, timings),
            Need::Read(word) => Turn::Ask(word),
            Need::Set(word) => {
                self.verified = None;
                self.defaults.setting(word);
                Turn::Ask(word)
            }
            Need::Wait(trouble) => self.wait(now, Some(trouble), timings),
        }
    }

    fn next_of_servers(&mut self, now: Instant, wanted: &Wanted, timings: &Timings) -> Turn {
        let mut good = true;
        let mut trouble = None;
        let fence = self.bare == Some(true);
        for (&own, server) in &mut self.servers {
            match server.next(own, now, wanted, fence, timings) {
                Next::Good => {}
                Next::Ask(word) => return self.ask_server(own, word),
                Next::ShutDown(why) => return self.shut_down(own, why, now),
                Next::Wait(why) => {
                    good = false;
                    trouble = trouble.or(why);
                }
                Next::Restart(trouble) => return Turn::Restart(trouble),
            }
        }
        if self.servers.is_empty() {
            return self.ask_for_server(now, timings);
        }
        if good { self.finish(now, wanted, timings) } else { self.wait(now, trouble, timings) }
    }

    fn ask_server(&mut self, own: u32, word: Word) -> Turn {
        if word.changes() {
            self.verified = None;
            if let Some(server) = self.servers.get_mut(&own) {
                server.limits.setting(word);
            }
        }
        Turn::Ask(word)
    }

    fn shut_down(&mut self, own: u32, why: Option<Trouble>, now: Instant) -> Turn {
        self.verified = None;
        match why {
            // Servers that start from now on have the limits.
            None => self.bare = Some(false),
            fault => self.trouble = fault,
        }
        if let Some(server) = self.servers.get_mut(&own) {
            server.shutting_down(now);
        }
        self.listed = false;
        Turn::Ask(Word::ShutdownServer(own))
    }

    /// Requests a server, though the daemon would start one for its first client: it proves that a client would find a
    /// working server.
    fn ask_for_server(&mut self, now: Instant, timings: &Timings) -> Turn {
        if self.server_asked {
            return self.wait(now, Some(Trouble::NoServer), timings);
        }
        self.server_asked = true;
        self.listed = false;
        Turn::Ask(Word::StartServer)
    }

    /// Ends a round in which everything is as desired.
    fn finish(&mut self, now: Instant, wanted: &Wanted, timings: &Timings) -> Turn {
        self.verified = Some((wanted.limit, wanted.threads));
        self.last_verified = self.verified;
        self.serving_since.get_or_insert(now);
        self.bare = Some(false);
        self.trouble = None;
        if now >= self.reread_at {
            self.reread_at = now + timings.reread_every;
            // Forget the readings from time to time, so that limits that changed without kerf are noticed.
            self.defaults.forget();
            self.servers.values_mut().for_each(|server| server.limits.forget());
        }
        self.failures = 0;
        self.next_round(now + timings.probe_every)
    }

    /// Ends a round in which something is not as desired.
    fn wait(&mut self, now: Instant, trouble: Option<Trouble>, timings: &Timings) -> Turn {
        self.verified = None;
        self.failures = 0;
        let pause = match &trouble {
            // These heal by time or by the clients, so poll soon.
            None | Some(Trouble::Fault { .. }) => timings.settle_poll.min(timings.probe_every),
            Some(_) => timings.probe_every,
        };
        self.trouble = trouble.or(self.trouble.take());
        self.next_round(now + pause)
    }

    fn next_round(&mut self, at: Instant) -> Turn {
        self.listed = false;
        self.server_asked = false;
        self.resume_at = at;
        self.defaults.retry();
        for server in self.servers.values_mut() {
            server.look_again();
            server.limits.retry();
        }
        Turn::Wait(at)
    }

    pub fn answered(&mut self, now: Instant, word: Word, answer: &Answer) {
        self.answered = true;
        self.hopeless = None;
        match (word, answer) {
            (Word::ServerList, Answer::Servers(found)) => {
                self.servers.retain(|own, _| found.contains(own));
                for own in found {
                    self.servers.entry(*own).or_insert_with(|| Server::new(now));
                }
                self.listed = true;
            }
            (Word::Memory(Scope::Default) | Word::Threads(Scope::Default), answer) => {
                if let Answer::Memory(read) = answer {
                    // Only the first reading counts, because later ones see the limits that kerf has set.
                    self.bare.get_or_insert(*read == MemoryReading::Unlimited);
                }
                self.defaults.take(answer);
            }
            (word, answer) => {
                if let Some(server) = word.server().and_then(|own| self.servers.get_mut(&own)) {
                    take(server, answer);
                }
            }
        }
    }

    /// Handles a word that had no answer.
    pub fn failed(&mut self, now: Instant, word: Word, error: &AskError, timings: &Timings) {
        match error {
            AskError::Answer(AnswerError::ServerGone(own)) => {
                self.servers.remove(own);
                self.listed = false;
                self.resume_at = now + timings.settle_poll;
            }
            AskError::Answer(AnswerError::Refused(text)) => {
                self.trouble = Some(Trouble::Refused { word, text: text.clone() });
                self.next_round(now + timings.probe_every);
            }
            AskError::Program { source, .. } | AskError::Socket(source) => {
                self.trouble = Some(Trouble::Client(format!("{error}: {source}")));
                self.next_round(now + timings.probe_every);
            }
            AskError::Timeout(_) | AskError::NoDaemon | AskError::Exit { .. } => {
                self.unanswered(now, word, timings);
            }
        }
    }

    fn unanswered(&mut self, now: Instant, word: Word, timings: &Timings) {
        if !self.answered {
            // A daemon that has never answered may still be starting, so it counts as hung by time and not by failures.
            let is_late = now >= self.ready_by;
            self.hopeless = is_late.then_some(Trouble::NotReady(timings.start_timeout));
            self.next_round(now + if is_late { timings.probe_every } else { timings.start_poll });
            return;
        }
        self.failures += 1;
        if self.failures >= timings.probe_failures {
            self.hopeless = Some(Trouble::Hung { word, failures: self.failures });
        }
        self.next_round(now + timings.probe_every);
    }
}

fn take(server: &mut Server, answer: &Answer) {
    match answer {
        Answer::Status(status) => server.status = Some(*status),
        Answer::Clients(clients) => {
            server.clients = clients.iter().copied().collect();
            server.clients_asked = true;
        }
        answer => server.limits.take(answer),
    }
}
