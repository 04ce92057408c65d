//! What is known of one MPS server.

use super::limits::{Limits, Need};
use super::trouble::Trouble;
use crate::mps::answer::ServerStatus;
use crate::mps::word::{Scope, Word};
use crate::mps::{Timings, Wanted};
use std::collections::BTreeSet;
use std::time::Instant;

/// A server.
#[derive(Debug, Clone)]
pub(super) struct Server {
    seen: Instant,
    /// As this round found it.
    pub status: Option<ServerStatus>,
    /// Whether this round has asked for its clients.
    pub clients_asked: bool,
    pub clients: BTreeSet<u32>,
    pub limits: Limits,
    faulty_since: Option<Instant>,
    shut_down: Option<Instant>,
}

/// What is to be done about a server.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Ask(Word),
    /// To shut it down: for a fault, or because it was started before the daemon had its limits, and so has none.
    ShutDown(Option<Trouble>),
    /// Nothing: it accepts clients within the limits.
    Good,
    /// Nothing now, but it is not good.
    Wait(Option<Trouble>),
    /// Only a new daemon helps.
    Restart(Trouble),
}

impl Server {
    pub fn new(now: Instant) -> Self {
        Self {
            seen: now,
            status: None,
            clients_asked: false,
            clients: BTreeSet::new(),
            limits: Limits::default(),
            faulty_since: None,
            shut_down: None,
        }
    }

    /// Begins another round.
    pub fn look_again(&mut self) {
        self.status = None;
        self.clients_asked = false;
    }

    /// `fence` says whether a server without the limits is to go, rather than to be given them.
    pub fn next(&mut self, own: u32, now: Instant, wanted: &Wanted, fence: bool, timings: &Timings) -> Next {
        let Some(status) = self.status else { return Next::Ask(Word::ServerStatus(own)) };
        if !self.clients_asked {
            return Next::Ask(Word::ClientList(own));
        }
        if let Some(since) = self.shut_down {
            // It says FAULT while it ends, and that is ours.
            let within = timings.fault_grace;
            let stays = now >= since + within;
            let trouble = Trouble::ServerStays { server: own, within };
            return if stays { Next::Restart(trouble) } else { Next::Wait(None) };
        }
        match status {
            ServerStatus::Initializing => self.initialising(own, now, timings),
            ServerStatus::Fault => self.faulty(own, now, timings),
            ServerStatus::Active => {
                self.faulty_since = None;
                match self.limits.need(Scope::Server(own), wanted) {
                    Need::Nothing => Next::Good,
                    Need::Set(_) if fence => Next::ShutDown(None),
                    Need::Read(word) | Need::Set(word) => Next::Ask(word),
                    Need::Wait(trouble) => Next::Wait(Some(trouble)),
                }
            }
        }
    }

    pub fn shutting_down(&mut self, now: Instant) {
        self.shut_down = Some(now);
    }

    fn initialising(&self, server: u32, now: Instant, timings: &Timings) -> Next {
        let within = timings.start_timeout;
        if now < self.seen + within {
            Next::Wait(None)
        } else {
            Next::Restart(Trouble::ServerNotReady { server, within })
        }
    }

    /// All clients have lost their work. With the last of them gone it heals by itself, as a rule.
    fn faulty(&mut self, server: u32, now: Instant, timings: &Timings) -> Next {
        let since = *self.faulty_since.get_or_insert(now);
        let trouble = Some(Trouble::Fault { server, clients: self.clients.len() });
        let now_or_never = self.clients.is_empty() || now >= since + timings.fault_grace;
        if now_or_never { Next::ShutDown(trouble) } else { Next::Wait(trouble) }
    }
}
