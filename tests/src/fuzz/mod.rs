//! Random input for all that reads what users write: no input may make it panic, and what it accepts must hold together.
//!
//! An input is made from the seed and its number alone, by mutation of a corpus of good ones: a run on many cores is the
//! same as on one, and each input can be made again.

mod corpus;
mod mutate;
mod run;
mod targets;

pub use run::{Defect, Report, run};
pub use targets::Target;
