//! `packing`: measures how much of what was asked for is placed. kerf and the rules of others play job lists of nine
//! mixes in the loss model, all on the same lists. Every decision is replayed, and the result is compared with an
//! oracle.

mod bars;
mod measure;
mod policy;
mod python;
mod tables;

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args as ClapArgs;

use crate::jobs::Scenario;
use crate::openb;
use crate::report::print_bars;
use measure::{Measured, measure};
pub use policy::table;

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The folder with the csv files of Alibaba's trace of 2023 (openb). Without it that part is left out.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// One seed instead of six, and the load of 0.95 only.
    #[arg(long)]
    quick: bool,
    /// A judge of decisions in Python (`packing_judge.py`): it makes lists of its own and must agree to the digit.
    #[arg(long, value_name = "FILE")]
    judge: Option<PathBuf>,
}

/// The scenario that most bars are about.
const USUAL: Scenario = Scenario::plain("96 GPUs, load 0.95", 96, 0.95);

const OTHERS: [Scenario; 4] = [
    Scenario::plain("16 GPUs", 16, 0.95),
    Scenario::plain("384 GPUs", 384, 0.95),
    Scenario { drift: true, ..Scenario::plain("drift", 96, 0.95) },
    Scenario { lognormal: true, ..Scenario::plain("lognormal lives", 96, 0.95) },
];

const LOADS: [Scenario; 2] = [Scenario::plain("load 0.85", 96, 0.85), Scenario::plain("load 1.05", 96, 1.05)];

/// Measures and prints. It fails if a decision was illegal or the judge disagrees, but not if a bar is missed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let seeds = if args.quick { 1 } else { 6 };
    let loads = LOADS.into_iter().filter(|_| !args.quick);
    let scenarios = [USUAL].into_iter().chain(OTHERS).chain(loads);
    let measured: Vec<Measured> = scenarios.map(|scenario| measure(scenario, seeds)).collect();
    tables::print_all(&measured);
    print_bars(&bars::bars(&measured));
    if let Some(judge) = &args.judge {
        python::compare(judge, &USUAL, seeds)?;
    }
    openb::run(args.data.as_deref(), args.quick)?;
    let illegal: Vec<&String> = measured.iter().flat_map(Measured::illegal).collect();
    ensure!(illegal.is_empty(), "illegal decisions: {} (the first: {})", illegal.len(), illegal[0]);
    Ok(())
}
