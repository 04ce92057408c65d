//! One cell of the matrix: what happens to which call, and how often and when it is made to happen.

use std::fmt;
use std::time::Duration;

use kerf_nvml_mock::{Fault, KillMoment, NvmlCode};

use super::act::Act;
use super::codes;

/// What becomes of a call, or of the agent that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blow {
    /// It gives this code.
    Code(NvmlCode),
    /// It does not come back until it is released.
    Hang,
    /// The agent is killed right before it.
    KillBefore,
    /// The agent is killed right after it.
    KillAfter,
}

/// As the table's columns are headed.
impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "{}", code.0),
            Self::Hang => f.write_str("hang"),
            Self::KillBefore => f.write_str("†pre"),
            Self::KillAfter => f.write_str("post†"),
        }
    }
}

/// A call and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The NVML function.
    pub function: String,
    /// What becomes of it.
    pub blow: Blow,
}

/// How a cell went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All held, and the node was settled within this time of the fault's end.
    Sound(Duration),
    /// What was wrong, and where the node's files are.
    Broken(Vec<String>),
    /// The agent did not make the call: the cell is empty.
    NotStruck,
}

/// One time that a cell's blow is struck.
#[derive(Debug, Clone)]
pub(super) struct Dose {
    pub(super) fault: Fault,
    /// Whether it goes on for a while.
    pub(super) lasts: bool,
    /// What makes the agent call.
    pub(super) act: Act,
}

/// Strikes of a fault that lasts: more than there are in its time.
const MANY: u32 = 10_000;

impl Cell {
    /// All cells of a function.
    pub(super) fn all(function: &str) -> impl Iterator<Item = Self> {
        let codes = codes::of(function).into_iter().map(Blow::Code);
        let blows = codes.chain([Blow::Hang, Blow::KillBefore, Blow::KillAfter]);
        blows.map(|blow| Self { function: function.to_owned(), blow })
    }

    /// The doses of the cell, `turn` saying with which of the acts that make the agent call to begin.
    pub(super) fn doses(&self, acts: &[Act], turn: usize) -> Vec<Dose> {
        let function = || self.function.clone();
        let changes = codes::changes(&self.function);
        let faults: Vec<(Fault, bool)> = match self.blow {
            Blow::Code(code) => {
                let fault = || Fault::new(function(), code);
                let lost = changes.then(|| (fault().times(1).after_effect(), false));
                [(fault().times(1), false), (fault().times(MANY), true)].into_iter().chain(lost).collect()
            }
            Blow::Hang => {
                let lost = changes.then(|| (Fault::hang(function()).after_effect(), true));
                [(Fault::hang(function()), true)].into_iter().chain(lost).collect()
            }
            Blow::KillBefore => vec![(Fault::kill(function(), KillMoment::Before), false); 2],
            Blow::KillAfter => vec![(Fault::kill(function(), KillMoment::After), false); 2],
        };
        let acts = acts.iter().cycle().skip(turn % acts.len().max(1));
        faults.into_iter().zip(acts).map(|((fault, lasts), act)| Dose { fault, lasts, act: *act }).collect()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.blow {
            Blow::Code(code) => write!(f, "{} gives {code}", self.function),
            Blow::Hang => write!(f, "{} hangs", self.function),
            Blow::KillBefore => write!(f, "the agent is killed before {}", self.function),
            Blow::KillAfter => write!(f, "the agent is killed after {}", self.function),
        }
    }
}
