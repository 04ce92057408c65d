//! One cell of the matrix: what happens to which call, and how often and when it is made to happen.

use std::fmt;
use std::time::Duration;

use kerf_nvml_mock::{Fault, KillMoment, NvmlCode};

use super::act::Act;
use super::codes;
use crate::mps::{Fault as Mishap, WordFault};

/// A call that the agent makes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// An NVML function.
    Nvml(String),
    /// A word to an MPS control daemon, without its arguments.
    Mps(String),
}

/// What becomes of a call, of the daemon that it goes to, or of the agent that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blow {
    /// It gives this code.
    Code(NvmlCode),
    /// It is not understood, or answered by nothing.
    Refused,
    /// It does not come back until it is released.
    Hang,
    /// It takes effect, and does not come back until it is released.
    HangAfter,
    /// The daemon is killed right before it takes effect.
    DieBefore,
    /// The daemon is killed right after.
    DieAfter,
    /// The agent is killed right before it takes effect.
    KillBefore,
    /// The agent is killed right after.
    KillAfter,
}

/// A call and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// The call.
    pub call: Call,
    /// What becomes of it.
    pub blow: Blow,
}

/// How a cell went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All held, and the node was settled within this time of the fault's end.
    Sound(Duration),
    /// What was wrong.
    Broken(Vec<String>),
    /// The agent did not make the call: the cell is empty.
    NotStruck,
}

/// One time that a cell's blow is struck.
#[derive(Debug, Clone)]
pub(super) struct Dose {
    pub(super) strike: Strike,
    pub(super) lasts: Lasts,
    /// What makes the agent call.
    pub(super) act: Act,
}

/// What strikes.
#[derive(Debug, Clone)]
pub(super) enum Strike {
    /// A call to the simulated NVML.
    Nvml(Fault),
    /// A word to the stand-in for the MPS control daemon.
    Mps(WordFault),
    /// The same, and the agent is killed while the daemon hangs.
    MpsAndAgent(WordFault),
}

/// How long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasts {
    /// It strikes once.
    Once,
    /// It strikes for a probe period, and what hangs until the agent has noticed.
    AWhile,
    /// It hangs until the agent has put another daemon in its place.
    UntilReplaced,
}

/// Strikes of a fault that lasts: more than there are in its time.
const MANY: u32 = 10_000;

impl Call {
    /// What may become of it.
    pub(super) fn blows(&self) -> Vec<Blow> {
        use Blow::{DieAfter, DieBefore, Hang, HangAfter, KillAfter, KillBefore, Refused};
        match self {
            Self::Nvml(function) => {
                let codes = codes::of(function).into_iter().map(Blow::Code);
                codes.chain([Hang, KillBefore, KillAfter]).collect()
            }
            Self::Mps(_) => vec![Refused, Hang, HangAfter, DieBefore, DieAfter, KillBefore, KillAfter],
        }
    }
}

impl Cell {
    /// The doses of the cell, `turn` saying with which of the acts that make the agent call to begin.
    pub(super) fn doses(&self, acts: &[Act], turn: usize) -> Vec<Dose> {
        let strikes = match &self.call {
            Call::Nvml(function) => of_nvml(function, self.blow),
            Call::Mps(word) => of_mps(word, self.blow),
        };
        let acts = acts.iter().cycle().skip(turn % acts.len().max(1));
        strikes
            .into_iter()
            .zip(acts)
            .map(|((strike, lasts), act)| Dose { strike, lasts, act: *act })
            .collect()
    }
}

fn of_nvml(function: &str, blow: Blow) -> Vec<(Strike, Lasts)> {
    let changes = codes::changes(function);
    let faults = match blow {
        Blow::Code(code) => {
            let fault = || Fault::new(function, code);
            let lost = changes.then(|| (fault().times(1).after_effect(), Lasts::Once));
            let two = [(fault().times(1), Lasts::Once), (fault().times(MANY), Lasts::AWhile)];
            two.into_iter().chain(lost).collect()
        }
        Blow::Hang => {
            let lost = changes.then(|| (Fault::hang(function).after_effect(), Lasts::AWhile));
            [(Fault::hang(function), Lasts::AWhile)].into_iter().chain(lost).collect()
        }
        Blow::KillBefore => vec![(Fault::kill(function, KillMoment::Before), Lasts::Once); 2],
        Blow::KillAfter => vec![(Fault::kill(function, KillMoment::After), Lasts::Once); 2],
        Blow::Refused | Blow::HangAfter | Blow::DieBefore | Blow::DieAfter => Vec::new(),
    };
    faults.into_iter().map(|(fault, lasts)| (Strike::Nvml(fault), lasts)).collect()
}

fn of_mps(word: &str, blow: Blow) -> Vec<(Strike, Lasts)> {
    let fault = |fault, times| WordFault { word: word.to_owned(), fault, times };
    let once = |mishap| (Strike::Mps(fault(mishap, Some(1))), Lasts::Once);
    let kill = |mishap| (Strike::MpsAndAgent(fault(mishap, Some(1))), Lasts::Once);
    match blow {
        Blow::Refused => {
            let text = "Unknown error".to_owned();
            let lasting = (Strike::Mps(fault(Mishap::Answer(text.clone()), None)), Lasts::AWhile);
            vec![once(Mishap::Answer(text)), once(Mishap::Answer(String::new())), lasting]
        }
        Blow::Hang => {
            let hang = |lasts| (Strike::Mps(fault(Mishap::HangBefore, Some(1))), lasts);
            vec![hang(Lasts::AWhile), hang(Lasts::UntilReplaced)]
        }
        Blow::HangAfter => vec![(Strike::Mps(fault(Mishap::HangAfter, Some(1))), Lasts::AWhile)],
        Blow::DieBefore => vec![once(Mishap::DieBefore)],
        Blow::DieAfter => vec![once(Mishap::DieAfter)],
        Blow::KillBefore => vec![kill(Mishap::HangBefore)],
        Blow::KillAfter => vec![kill(Mishap::HangAfter)],
        Blow::Code(_) => Vec::new(),
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvml(name) | Self::Mps(name) => f.write_str(name),
        }
    }
}

/// As the table's columns are headed.
impl fmt::Display for Blow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Code(code) => return write!(f, "{}", code.0),
            Self::Refused => "refused",
            Self::Hang => "hang",
            Self::HangAfter => "hang after",
            Self::DieBefore => "dies before",
            Self::DieAfter => "dies after",
            Self::KillBefore => "kill before",
            Self::KillAfter => "kill after",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = &self.call;
        match self.blow {
            Blow::Code(code) => write!(f, "{call} gives {code}"),
            Blow::Refused => write!(f, "{call} is refused"),
            Blow::Hang => write!(f, "{call} hangs"),
            Blow::HangAfter => write!(f, "{call} hangs after its effect"),
            Blow::DieBefore => write!(f, "the MPS daemon is killed before {call}"),
            Blow::DieAfter => write!(f, "the MPS daemon is killed after {call}"),
            Blow::KillBefore => write!(f, "the agent is killed before {call}"),
            Blow::KillAfter => write!(f, "the agent is killed after {call}"),
        }
    }
}
