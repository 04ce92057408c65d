//! The observed limits. A limit counts only once it was read back, not when it was set.

use super::trouble::Trouble;
use crate::mps::Wanted;
use crate::mps::answer::{Answer, MemoryReading, Percentage};
use crate::mps::word::{Scope, Word};

#[derive(Debug, Clone)]
struct Limit<R> {
    read: Option<R>,
    /// Whether it was set since it last agreed.
    set: bool,
}

impl<R> Default for Limit<R> {
    fn default() -> Self {
        Self { read: None, set: false }
    }
}

/// The limits of one server, or the defaults of future servers.
#[derive(Debug, Clone, Default)]
pub(super) struct Limits {
    memory: Limit<MemoryReading>,
    threads: Limit<Percentage>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Need {
    Nothing,
    Read(Word),
    /// To set a limit that differs.
    Set(Word),
    /// To wait, because setting a limit had no effect.
    Wait(Trouble),
}

impl Limits {
    pub fn need(&self, scope: Scope, wanted: &Wanted) -> Need {
        match self.memory.read {
            None => return Need::Read(Word::Memory(scope)),
            Some(read) if read.agrees(wanted.limit) => {}
            Some(read) if self.memory.set => {
                return Need::Wait(Trouble::Memory { scope, wanted: wanted.limit, read });
            }
            Some(_) => return Need::Set(Word::SetMemory(scope, wanted.limit)),
        }
        match self.threads.read {
            None => Need::Read(Word::Threads(scope)),
            Some(read) if read.agrees(wanted.threads) => Need::Nothing,
            Some(read) if self.threads.set => {
                Need::Wait(Trouble::Threads { scope, wanted: wanted.threads, read })
            }
            Some(_) => Need::Set(Word::SetThreads(scope, wanted.threads)),
        }
    }

    /// Records that a limit is about to be set: its value is unknown until it is read.
    pub fn setting(&mut self, word: Word) {
        match word {
            Word::SetMemory(..) => self.memory = Limit { read: None, set: true },
            Word::SetThreads(..) => self.threads = Limit { read: None, set: true },
            _ => {}
        }
    }

    pub fn take(&mut self, answer: &Answer) {
        match answer {
            Answer::Memory(read) => self.memory.read = Some(*read),
            Answer::Threads(read) => self.threads.read = Some(*read),
            _ => {}
        }
    }

    /// Lets limits that differ be set again.
    pub fn retry(&mut self) {
        self.memory.set = false;
        self.threads.set = false;
    }

    /// Lets all limits be read again.
    pub fn forget(&mut self) {
        *self = Self::default();
    }
}
