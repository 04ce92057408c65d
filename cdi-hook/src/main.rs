//! `kerf-cdi-hook`.
#![forbid(unsafe_code)]

use kerf_cdi_hook::{Done, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(std::env::args().skip(1), std::io::stdin()) {
        Ok(Done::Written | Done::Complete) => ExitCode::SUCCESS,
        Ok(Done::Skipped(why)) => {
            eprintln!("kerf-cdi-hook: the container's library cache stays as it is: {why}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("kerf-cdi-hook: {error}");
            ExitCode::FAILURE
        }
    }
}
