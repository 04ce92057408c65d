//! One cell of the matrix: a call, its fault, and how often and when the fault occurs.

use std::fmt;
use std::time::Duration;

use kerf_nvml_mock::{Fault, KillMoment, NvmlCode};

use super::act::Act;
use super::codes;
use crate::mps::{Fault as Mishap, WordFault};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Nvml(String),
    /// A command to an MPS control daemon, without its arguments.
    Mps(String),
}

/// The fault of a call, of the daemon that it goes to, or of the agent that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blow {
    /// The call returns this code.
    Code(NvmlCode),
    /// The daemon answers with an error, or with nothing.
    Refused,
    /// The call does not return until it is released.
    Hang,
    /// The call takes effect, but does not return until it is released.
    HangAfter,
    /// The daemon is killed before the call takes effect.
    DieBefore,
    /// The daemon is killed after the call took effect.
    DieAfter,
    /// The agent is killed before the call takes effect.
    KillBefore,
    /// The agent is killed after the call took effect.
    KillAfter,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub call: Call,
    pub blow: Blow,
}

/// The result of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every check held. The node settled within this time after the fault's end.
    Sound(Duration),
    /// The checks that were violated, as texts.
    Broken(Vec<String>),
    /// The agent did not make the call, so the cell is empty.
    NotStruck,
}

/// One injection of a cell's fault.
#[derive(Debug, Clone)]
pub(super) struct Dose {
    pub(super) strike: Strike,
    pub(super) lasts: Lasts,
    /// The act that makes the agent call.
    pub(super) act: Act,
}

#[derive(Debug, Clone)]
pub(super) enum Strike {
    /// A fault of the simulated NVML.
    Nvml(Fault),
    /// A fault of the stand-in for the MPS control daemon.
    Mps(WordFault),
    /// A fault of the stand-in, during which the agent is killed.
    MpsAndAgent(WordFault),
}

/// The duration of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasts {
    /// The fault occurs once, whether or not it hangs.
    Once,
    /// It lasts for a probe period. A call that hangs does so until the agent has noticed.
    AWhile,
    /// It hangs until the agent has replaced the daemon.
    UntilReplaced,
}

/// Occurrences of a fault with a duration: more than fit into it.
const MANY: u32 = 10_000;

impl Call {
    /// The faults that this call can have.
    pub(super) fn blows(&self) -> Vec<Blow> {
        use Blow::{DieAfter, DieBefore, Hang, HangAfter, KillAfter, KillBefore, Refused};
        match self {
            Self::Nvml(function) => {
                let codes = codes::codes(function).into_iter().map(Blow::Code);
                codes.chain([Hang, KillBefore, KillAfter]).collect()
            }
            Self::Mps(_) => vec![Refused, Hang, HangAfter, DieBefore, DieAfter, KillBefore, KillAfter],
        }
    }
}

impl Cell {
    /// The doses of the cell. `turn` selects the act to begin with, among those that make the agent call.
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

/// The heading of the table's column.
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
