//! Random inputs for all code that parses users' input: no input may make it panic, and what it accepts must
//! be consistent.
//!
//! The seed and an input's number alone determine the input, by mutation of a corpus of valid inputs. So a
//! run has the same inputs on any number of cores, and each input can be reproduced.

mod corpus;
mod mutate;
mod run;
mod targets;

pub use run::{Defect, Report, run};
pub use targets::Target;
