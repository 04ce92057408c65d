//! The `kerf` program: parses the command line, runs it and prints its error.
#![forbid(unsafe_code)]

use clap::{CommandFactory as _, Parser as _};
use kerf_cli::command::Cli;
use kerf_cli::exit::Exit;
use kerf_cli::{completion, failure};
use std::process::ExitCode;

fn main() -> ExitCode {
    // This comes first, because the command line of a completion is incomplete and cannot be parsed.
    completion::answer(Cli::command);
    let exit = Cli::parse().run().unwrap_or_else(|error| {
        let exit = Exit::from_error(&error);
        // No message is printed, because the reader has gone on purpose, as `head` does.
        if exit != Exit::ClosedPipe {
            eprintln!("Error: {}", failure::with_causes(&error));
        }
        exit
    });
    exit.into()
}
