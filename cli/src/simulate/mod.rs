//! `kerf simulate`: what kerf would decide, without a cluster. It drives the code that the extender runs.

pub mod jobs;
pub mod openb;
pub mod replay;
pub mod snapshot;
pub mod summary;

use clap::Args as ClapArgs;
use kerf_core::mig::MigTable;
use kerf_core::mig::catalog::{self, Certainty};
use kerf_core::packing::Terms;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
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
    /// Print what it came to instead of the decisions: acceptance, fragmentation, and how full the fleet was over time.
    #[arg(long)]
    summary: bool,
    /// Say instead what fits on the nodes of a snapshot by `kubectl get gpunodes -o json`; `-` for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gpus", "model", "moves", "summary"])]
    snapshot: Option<PathBuf>,
    /// Place pods by shares of GPUs instead: nodes as `sn,cpu_milli,memory_mib,gpu,model`; pods are read from standard
    /// input, a line `cpu_milli memory_mib num_gpu gpu_milli gpu_spec` each.
    #[arg(long, value_name = "NODES.csv", conflicts_with_all = ["gpus", "model", "moves", "summary", "snapshot", "policy"])]
    openb: Option<PathBuf>,
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
    #[error("--policy")]
    Policy(#[from] kerf_runtime::policy_file::PolicyFileError),
    /// Standard input cannot be read.
    #[error("failed to read standard input")]
    Read(#[from] std::io::Error),
    /// The snapshot cannot be read.
    #[error("--snapshot {}: failed to read", path.display())]
    ReadSnapshot {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The nodes file cannot be read.
    #[error("--openb {}: failed to read", path.display())]
    ReadNodes {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The nodes or the pods are bad.
    #[error("--openb")]
    Openb(#[from] openb::OpenbError),
    /// The snapshot is bad.
    #[error("--snapshot")]
    Snapshot(#[from] snapshot::SnapshotError),
    /// The job list is bad.
    #[error("standard input")]
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
    if let Some(file) = &args.openb {
        let nodes = std::fs::read_to_string(file)
            .map_err(|source| InputError::ReadNodes { path: file.clone(), source })?;
        return Ok(openb::run(&nodes, &standard_input()?)?);
    }
    if let Some(file) = &args.snapshot {
        return Ok(snapshot::report(&read(file)?, terms(args)?)?);
    }
    let table = table(&args.model)?;
    let jobs = jobs::parse(&standard_input()?, &table)?;
    let gpus = usize::try_from(args.gpus).unwrap_or(usize::MAX);
    let mut replay = replay::Replay::new(&table, gpus, terms(args)?, args.moves);
    if !args.summary {
        let lines: Vec<String> = jobs.iter().map(|job| replay.arrive(job).to_string()).collect();
        return Ok(lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect());
    }
    let (mut decisions, mut fragmentation) = (Vec::new(), Vec::new());
    for job in &jobs {
        decisions.push(replay.arrive(job));
        fragmentation.push(replay.fragmentation());
    }
    Ok(summary::summary(&jobs, &decisions, &fragmentation, &table, gpus))
}

fn read(file: &Path) -> Result<String, InputError> {
    if file == Path::new("-") {
        return Ok(standard_input()?);
    }
    std::fs::read_to_string(file).map_err(|source| InputError::ReadSnapshot { path: file.to_owned(), source })
}

fn terms(args: &Args) -> Result<Terms, InputError> {
    let policy = args.policy.as_deref().map(kerf_runtime::policy_file::read).transpose()?;
    Ok(Terms {
        moves: args.moves > 0.0,
        weights: policy.map(|policies| policies.weights()).unwrap_or_default(),
    })
}

fn table(model: &str) -> Result<MigTable, InputError> {
    let found = catalog::MODELS.iter().find(|m| m.name.eq_ignore_ascii_case(model));
    if let Some(unsure) = found.filter(|m| m.certainty == Certainty::Unsure) {
        let name = unsure.name;
        eprintln!(
            "warning: profiles and placements of {name} are inferred; a node with one may cut it otherwise"
        );
    }
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
