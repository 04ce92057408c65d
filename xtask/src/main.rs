//! `cargo xtask <task>`: the project's own tasks. It only parses the command line and calls the task.
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
    // Returning the error would also print a backtrace, which hides the remedy in the text.
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
