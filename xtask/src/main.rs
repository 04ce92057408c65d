//! `cargo xtask <task>`: the project's own tasks. Parses the command line and hands over; nothing is decided here.
#![forbid(unsafe_code)]

mod bench;
mod build;
mod cargo;
mod chart_values;
mod cross;
mod gpu;
mod images;
mod manifests;
mod shipped;
mod task;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let Err(error) = task::Xtask::parse().run() else { return ExitCode::SUCCESS };
    // Without the backtrace that returning it would print: the text holds the remedy.
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
