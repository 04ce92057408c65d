//! The observed state of one MPS server, and the next action for it.

use super::limits::{Limits, Need};
use super::trouble::Trouble;
use crate::mps::answer::ServerStatus;
use crate::mps::word::{Scope, Word};
use crate::mps::{Timings, Wanted};
use std::collections::BTreeSet;
use std::time::Instant;

#[derive(Debug, Clone)]
pub(super) struct Server {
    seen: Instant,
    /// The status that this round has read.
    pub status: Option<ServerStatus>,
    /// Whether this round has listed its clients.
    pub clients_asked: bool,
    pub clients: BTreeSet<u32>,
    pub limits: Limits,
    faulty_since: Option<Instant>,
    shut_down: Option<Instant>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Ask(Word),
    /// To shut it down: for a fault, or because it started before the daemon had its limits and so has none.
    ShutDown(Option<Trouble>),
    /// No action: it accepts clients within the limits.
    Good,
    /// No action now, though it is not as desired.
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

    pub fn look_again(&mut self) {
        self.status = None;
        self.clients_asked = false;
    }

    /// `fence` is whether a server without the limits is shut down; otherwise it gets them.
    pub fn next(&mut self, own: u32, now: Instant, wanted: &Wanted, fence: bool, timings: &Timings) -> Next {
        let Some(status) = self.status else { return Next::Ask(Word::ServerStatus(own)) };
        if !self.clients_asked {
            return Next::Ask(Word::ClientList(own));
        }
        if let Some(since) = self.shut_down {
            // A server reports FAULT while it is being shut down, so that is not a new fault.
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

    /// Handles a fault, in which all clients have lost their work. Usually the server recovers when the last of them
    /// has left.
    fn faulty(&mut self, server: u32, now: Instant, timings: &Timings) -> Next {
        let since = *self.faulty_since.get_or_insert(now);
        let trouble = Some(Trouble::Fault { server, clients: self.clients.len() });
        let now_or_never = self.clients.is_empty() || now >= since + timings.fault_grace;
        if now_or_never { Next::ShutDown(trouble) } else { Next::Wait(trouble) }
    }
}
