//! The `kerf` program: parses the command line, runs it and prints its error.
#![forbid(unsafe_code)]

use clap::Parser as _;
use kerf_cli::command::Cli;
use kerf_cli::exit::Exit;
use kerf_cli::{completion, failure};
use std::process::ExitCode;

fn main() -> ExitCode {
    completion::answer();
    let exit = Cli::parse().run().unwrap_or_else(|error| {
        let exit = Exit::of(&error);
        if exit != Exit::ClosedPipe {
            eprintln!("Error: {}", failure::told(&error));
        }
        exit
    });
    exit.into()
}
