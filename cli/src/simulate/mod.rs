//! `kerf simulate`: what kerf would decide, without a cluster. It drives the code that the extender runs.

pub mod jobs;
pub mod replay;

use clap::Args as ClapArgs;
use kerf_core::mig::{MigTable, catalog};
use kerf_core::packing::Terms;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use thiserror::Error;

/// What to simulate.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// How many GPUs; a job list `arrival duration profile` is read from standard input.
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..))]
    gpus: u32,
    /// Their model, as `kerf.dev/gpu-model` labels spell it, in any case.
    #[arg(long, default_value = "h100-80gb")]
    model: String,
    /// How many running jobs may be moved, as a part of all jobs.
    #[arg(long, default_value_t = 0.0, value_name = "PART")]
    moves: f64,
    /// A policy file, for the weights of its `packing`.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
}

/// Why nothing was simulated: bad input, which ends with exit code 2.
#[derive(Debug, Error)]
pub enum InputError {
    /// The model is not known.
    #[error("--model: {0:?} is not known; the models with MIG are {1}")]
    Model(String, String),
    /// The part of moves is none.
    #[error("--moves: {0} is no part of the jobs; write a number from 0 to 1")]
    Moves(f64),
    /// The policy file is bad.
    #[error("--policy: {0}")]
    Policy(#[from] kerf_runtime::policy_file::PolicyFileError),
    /// Standard input cannot be read.
    #[error("failed to read standard input: {0}")]
    Read(#[from] std::io::Error),
    /// The job list is bad.
    #[error("standard input, {0}")]
    Jobs(#[from] jobs::JobsError),
}

/// Simulates. Nothing is printed before all input was found good.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let text = output(args)?;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

fn output(args: &Args) -> Result<String, InputError> {
    if !(0.0..=1.0).contains(&args.moves) {
        return Err(InputError::Moves(args.moves));
    }
    let table = table(&args.model)?;
    let jobs = jobs::parse(&standard_input()?, &table)?;
    let gpus = usize::try_from(args.gpus).unwrap_or(usize::MAX);
    let mut replay = replay::Replay::new(&table, gpus, terms(args)?, args.moves);
    let mut text = String::new();
    for job in &jobs {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{}", replay.arrive(job));
    }
    Ok(text)
}

fn terms(args: &Args) -> Result<Terms, InputError> {
    let policy = args.policy.as_deref().map(kerf_runtime::policy_file::read).transpose()?;
    Ok(Terms { moves: args.moves > 0.0, weights: policy.map(|p| p.weights().clone()).unwrap_or_default() })
}

fn table(model: &str) -> Result<MigTable, InputError> {
    let found = catalog::MODELS.iter().find(|m| m.name.eq_ignore_ascii_case(model));
    found.and_then(catalog::GpuModel::mig_table).ok_or_else(|| {
        let with_mig = catalog::MODELS.iter().filter(|m| m.mig_table().is_some());
        InputError::Model(model.to_owned(), with_mig.map(|m| m.name).collect::<Vec<_>>().join(", "))
    })
}

fn standard_input() -> Result<String, std::io::Error> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}
