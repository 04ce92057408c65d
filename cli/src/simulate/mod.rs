//! `kerf simulate`: shows what kerf would decide, without a cluster. It runs the extender's own code, so that both
//! agree.

pub mod jobs;
pub mod openb;
pub mod pods;
pub mod replay;
pub mod summary;

use crate::connection::candidates;
use crate::input;
use crate::output::{self, Format, Report};
use crate::snapshot;
use clap::Args as ClapArgs;
use clap_complete::ArgValueCandidates;
use kerf_core::mig::MigTable;
use kerf_core::mig::catalog::{self, Certainty};
use kerf_core::packing::Terms;
use serde::Serialize;
use std::path::PathBuf;
use thiserror::Error;

const EXAMPLES: &str = "\
Examples:
  # How many more of each profile fit on a cluster, and who is in the way
  kubectl get gpunodes -o json | kerf simulate --snapshot -

  # Which kind each pod of a manifest would get on the cluster as it is, on which node, and what was passed over
  kubectl get gpunodes,nodes -o json > cluster.json
  kerf simulate --snapshot cluster.json --pods deploy/examples/mig-small.yaml --policy policies

  # What kerf decides for a list of jobs on four GPUs
  kerf simulate --gpus 4 --model h100-80gb -f deploy/examples/jobs.txt

  # The same with moves, summed up
  kerf simulate --gpus 4 --model h100-80gb --moves 0.04 --summary -f deploy/examples/jobs.txt";

/// What to simulate.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// How many GPUs.
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..))]
    gpus: u32,
    /// Their model, as `kerf.dev/gpu-model` labels spell it, in any case.
    #[arg(long, default_value = "h100-80gb", add = ArgValueCandidates::new(candidates::models))]
    model: String,
    /// How many running jobs may be moved, as a part of all jobs.
    #[arg(long, default_value_t = 0.0, value_name = "PART")]
    moves: f64,
    /// Print what it came to instead of the decisions: acceptance, fragmentation, and how full the fleet was over time.
    #[arg(long)]
    summary: bool,
    /// The jobs, a line `arrival duration profile` each; with --openb the pods, a line `cpu_milli memory_mib num_gpu
    /// gpu_milli gpu_spec` each. The default is standard input.
    #[arg(short, long, value_name = "FILE", default_value = "-", hide_default_value = true)]
    filename: PathBuf,
    /// Say instead what fits on the nodes of a snapshot by `kubectl get gpunodes,nodes -o json`, or -o yaml; `-` for
    /// standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gpus", "model", "moves", "summary", "filename"])]
    snapshot: Option<PathBuf>,
    /// Decide the pods of a file on the snapshot, one after the other: manifests, with one pod of each template, or
    /// request documents as in the annotation `kerf.dev/request`; `-` for standard input. Pods without that annotation
    /// need --policy.
    #[arg(long, value_name = "FILE", requires = "snapshot")]
    pods: Option<PathBuf>,
    /// Place pods by shares of GPUs instead, on nodes as `sn,cpu_milli,memory_mib,gpu,model`.
    #[arg(long, value_name = "NODES.csv", conflicts_with_all = ["gpus", "model", "moves", "summary", "snapshot", "policy"])]
    openb: Option<PathBuf>,
    /// Policy file, or a folder of them, for the weights of its `packing`; with --pods also for what the pods get.
    #[arg(long, alias = "policies", value_name = "PATH")]
    policy: Option<PathBuf>,
    /// The form; `wide`, with --pods alone, has more columns.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[Format::Wide]))]
    output: Format,
}

#[derive(Debug, Error)]
pub enum InputError {
    #[error("--model: {0:?} is not known; the models with MIG are {1}")]
    Model(String, String),
    #[error("--moves: {0} is no part of the jobs; write a number from 0 to 1")]
    Moves(f64),
    #[error("--policy")]
    Policy(#[from] kerf_runtime::policy_file::PolicyFileError),
    #[error(transparent)]
    Read(#[from] input::InputError),
    #[error("--openb")]
    Openb(#[from] openb::OpenbError),
    #[error("--snapshot")]
    Snapshot(#[from] snapshot::SnapshotError),
    #[error(transparent)]
    Pods(#[from] pods::PodsError),
    #[error("--output: wide is for --pods alone; leave it out, or write json or yaml")]
    Wide,
    #[error("--snapshot and --pods: only one of them can be standard input; write a file for the other")]
    OneInput,
    #[error("{place}")]
    Jobs { place: String, source: jobs::JobsError },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Simulated {
    Decisions { decisions: Vec<replay::Decision> },
    Summary(summary::Summary),
    Snapshot(snapshot::Snapshot),
    Pods(pods::Placed),
    Placed { decisions: Vec<openb::Placed> },
}

impl Report for Simulated {
    fn text(&self, format: Format) -> String {
        match self {
            Self::Pods(placed) => placed.table(format == Format::Wide),
            Self::Decisions { decisions } => output::lines(decisions),
            Self::Placed { decisions } => output::lines(decisions),
            Self::Summary(summary) => summary.to_string(),
            Self::Snapshot(snapshot) => snapshot.to_string(),
        }
    }
}

/// Simulates. Nothing is printed until all input has proved valid.
pub fn run(args: &Args) -> anyhow::Result<()> {
    output::print(&simulated(args)?, args.output)
}

fn simulated(args: &Args) -> Result<Simulated, InputError> {
    if !(0.0..=1.0).contains(&args.moves) {
        return Err(InputError::Moves(args.moves));
    }
    if args.output == Format::Wide && args.pods.is_none() {
        return Err(InputError::Wide);
    }
    if let Some(nodes) = &args.openb {
        let (nodes, pods) = (input::read(nodes)?, input::read(&args.filename)?);
        return Ok(Simulated::Placed { decisions: openb::run(&nodes, &pods)? });
    }
    if let (Some(snapshot), Some(file)) = (&args.snapshot, &args.pods) {
        if input::is_stdin(snapshot) && input::is_stdin(file) {
            return Err(InputError::OneInput);
        }
        let policies = args.policy.as_deref().map(kerf_runtime::policy_file::read).transpose()?;
        return Ok(Simulated::Pods(pods::run(snapshot, file, policies.as_ref())?));
    }
    if let Some(file) = &args.snapshot {
        return Ok(Simulated::Snapshot(snapshot::report(&input::read(file)?, terms(args)?)?));
    }
    let table = table(&args.model)?;
    let jobs = jobs::parse(&input::read(&args.filename)?, &table)
        .map_err(|source| InputError::Jobs { place: input::place(&args.filename), source })?;
    let gpus = usize::try_from(args.gpus).unwrap_or(usize::MAX);
    let mut replay = replay::Replay::new(&table, gpus, terms(args)?, args.moves);
    let (mut decisions, mut fragmentation) = (Vec::new(), Vec::new());
    for job in &jobs {
        decisions.push(replay.arrive(job));
        if args.summary {
            fragmentation.push(replay.fragmentation());
        }
    }
    Ok(if args.summary {
        Simulated::Summary(summary::summary(&jobs, &decisions, &fragmentation, &table, gpus))
    } else {
        Simulated::Decisions { decisions }
    })
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
