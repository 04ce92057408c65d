//! The command-line flags of `kerf bench`.

use super::Technology;
use crate::connection::{Connection, candidates};
use crate::input::Files;
use crate::output::Format;
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCandidates;
use kerf_core::units::ComputePercent;
use kerf_runtime::duration::positive;
use std::path::PathBuf;
use std::time::Duration;

const SHARING: &str = "\
Examples:
  # The detector of the reference comparison, under every way of sharing that the cluster's GPUs offer
  kerf bench sharing --image registry.example/torch:2

  # A language model under two of them
  kerf bench sharing --image registry.example/torch:2 --workload llm --copies 1,7 --technologies mps,time-slicing

  # Any program
  kerf bench sharing --image python:3 --workload command -- sleep 0.1";

const PROFILE: &str = "\
Examples:
  # What a running pod does to a GPU
  kerf bench profile serving-7d4b9 -n team

  # The same of a manifest
  kerf bench profile -f pod.yaml --memory 10Gi";

const NEIGHBOURS: &str = "\
Examples:
  # Whether a noisy neighbour is felt, for two profiles
  kerf bench neighbours --image registry.example/torch:2 --profiles 1g.10gb,2g.20gb";

const REPORT: &str = "\
Examples:
  # Two runs as one table and one picture
  kerf bench report -f mps/results.json -f limited/results.json --output-directory all";

/// Which cluster, and how clients run and are measured there.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The namespace in which Deployments and a ConfigMap are made, and removed at the end. The default is the
    /// context's.
    #[arg(short, long, add = ArgValueCandidates::new(candidates::namespaces))]
    pub namespace: Option<String>,
    /// The GPU, by its UUID. The default is one without holders.
    #[arg(long, value_name = "UUID", add = ArgValueCandidates::new(candidates::gpus))]
    pub gpu: Option<String>,
    /// How long each copy runs before it counts as warm.
    #[arg(long, default_value = "10s", value_parser = positive, value_name = "DURATION")]
    pub warm_up: Duration,
    /// How long to measure at least, while all copies are warm.
    #[arg(long, default_value = "20s", value_parser = positive, value_name = "DURATION")]
    pub measure: Duration,
    /// How long the copies of a point may take until all run: images are pulled in this time.
    #[arg(long, default_value = "10m", value_parser = positive, value_name = "DURATION")]
    pub start_within: Duration,
    #[command(flatten)]
    pub results: ResultArgs,
    #[command(flatten)]
    pub connection: Connection,
}

/// Where results go.
#[derive(Debug, Clone, Args)]
pub struct ResultArgs {
    /// Where all results are written.
    #[arg(long = "output-directory", alias = "out", value_name = "DIR", default_value = "kerf-sharing")]
    pub folder: PathBuf,
    /// The form in which the figures are printed.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[]))]
    pub output: Format,
}

/// The client's pods.
#[derive(Debug, Clone, Args)]
pub struct PodArgs {
    /// What is kept busy. `command` runs what stands behind `--`, again and again.
    #[arg(long, value_enum, default_value_t = WorkloadName::Yolos)]
    pub workload: WorkloadName,
    /// The image, which has Python, and torch and transformers but for `command`. Without it --template names one.
    #[arg(long)]
    pub image: Option<String>,
    /// A pod template in YAML (`metadata`, `spec`) that the client's pod is merged onto: its volumes, node selector,
    /// tolerations and host network stay, and of its container `client` the variables, the mounts, the image and the
    /// command, behind which the client's path is put.
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// The folder in the container that has the client's files already; without it a ConfigMap brings them.
    #[arg(long, value_name = "DIR")]
    pub client_path: Option<String>,
    /// The program of the workload `command`, and its arguments.
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// `kerf bench sharing`.
#[derive(Debug, Clone, Args)]
#[command(after_help = SHARING)]
pub struct SharingArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub pods: PodArgs,
    /// How the copies share the GPU; without it in all ways that the cluster's GPUs offer.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub technologies: Vec<Technology>,
    /// How many copies.
    #[arg(long, value_delimiter = ',', default_value = "1,3,5,7", value_parser = clap::value_parser!(u32).range(1..=48))]
    pub copies: Vec<u32>,
    /// The memory that each copy asks for.
    #[arg(long, default_value = "10Gi")]
    pub memory: String,
    /// The limit of threads of `mps-limited`, in percent of the GPU.
    #[arg(long, default_value = "14", value_parser = percent)]
    pub threads: ComputePercent,
    /// `results.json` of an earlier run on the same GPU model. Its fit predicts this run's points if this run has no
    /// fit of its own: under another node policy, say.
    #[arg(long, value_name = "FILE")]
    pub fit: Option<PathBuf>,
}

/// `kerf bench profile`.
#[derive(Debug, Clone, Args)]
#[command(after_help = PROFILE)]
pub struct ProfileArgs {
    /// The pod in the cluster whose spec is taken.
    #[arg(required_unless_present = "filename", conflicts_with = "filename", add = ArgValueCandidates::new(candidates::pods))]
    pub pod: Option<String>,
    /// The pod's manifest; `-` for standard input.
    #[arg(short, long, alias = "file", value_name = "FILE")]
    pub filename: Option<PathBuf>,
    /// The container that asks for the GPU, and whose log has the client's lines; needed where the pod has several.
    #[arg(short, long)]
    pub container: Option<String>,
    /// The memory that each copy asks for; without it what the pod asks for.
    #[arg(long)]
    pub memory: Option<String>,
    /// How many copies run together; without it as many as the GPU's memory has room for, up to 7.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=48))]
    pub copies: Option<u32>,
    #[command(flatten)]
    pub run: RunArgs,
}

/// `kerf bench neighbours`.
#[derive(Debug, Clone, Args)]
#[command(after_help = NEIGHBOURS)]
pub struct NeighboursArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub pods: PodArgs,
    /// The MIG profiles, such as `1g.10gb` or `1c.3g.40gb`; without it the GPU's own of which it has room for two.
    #[arg(long, value_delimiter = ',')]
    pub profiles: Vec<String>,
    /// What the neighbour does; `command` is the command behind `--` once more.
    #[arg(long, value_enum, default_value_t = WorkloadName::Burn, value_name = "WORKLOAD")]
    pub neighbour: WorkloadName,
}

/// `kerf bench report`.
#[derive(Debug, Clone, Args)]
#[command(after_help = REPORT)]
pub struct ReportArgs {
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    pub results: ResultArgs,
}

/// What is kept busy: `deploy/examples/sharing/client/workloads.py`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Object detection on one picture, by a model of YOLOS-small's shape, as in the reference comparison.
    Yolos,
    /// 32 tokens by a language model of 1.1 billion weights.
    Llm,
    /// Matrix products without a pause.
    Burn,
    /// Runs of any program.
    Command,
}

impl WorkloadName {
    /// The value of the client's variable `WORKLOAD`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Yolos => "yolos",
            Self::Llm => "llm",
            Self::Burn => "burn",
            Self::Command => "command",
        }
    }
}

fn percent(text: &str) -> Result<ComputePercent, String> {
    let refused = || format!("{text:?} is no part of a GPU's threads; write percent, 1 to 100");
    text.parse().ok().and_then(ComputePercent::new).ok_or_else(refused)
}
