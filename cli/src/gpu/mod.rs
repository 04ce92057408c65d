//! `kerf gpu`: what a node's NVML says of its GPUs. It changes nothing.

pub(crate) mod columns;
mod list;
mod profiles;

use anyhow::Context as _;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use kerf_core::mig::catalog::{self, GpuModel};
use kerf_nvml::{Gpu, GpuBackend as _, GpuError, NvmlBackend};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::io::Write as _;

/// What to say of them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the GPUs, what is cut from them and what runs on them.
    List(Args),
    /// List what MIG offers on each GPU, and where kerf's catalog says something else.
    Profiles(Args),
}

/// Where to ask, and how to answer.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// NVML: a path, or a name that the loader finds.
    #[arg(long, default_value = "libnvidia-ml.so.1", value_name = "PATH")]
    nvml: OsString,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// A way to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For eyes.
    Table,
    /// For programs.
    Json,
}

/// Runs the command.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List(args) => {
            let nvml = open(args)?;
            print(args, &list::report(nvml)?, list::Report::write)
        }
        Command::Profiles(args) => {
            let nvml = open(args)?;
            print(args, &profiles::report(nvml)?, profiles::Report::write)
        }
    }
}

/// Whether the input is wrong, not the program: `--nvml` names nothing that can be loaded.
#[must_use]
pub fn is_input(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(GpuError::Library { .. }))
}

fn open(args: &Args) -> anyhow::Result<NvmlBackend> {
    let opened = NvmlBackend::open(&args.nvml);
    match opened {
        Err(error @ GpuError::Call { .. }) => {
            Err(error).context("NVML does not start; is the driver loaded, and may you open /dev/nvidiactl?")
        }
        opened => Ok(opened?),
    }
}

fn print<T: Serialize>(args: &Args, report: &T, write: impl Fn(&T) -> String) -> anyhow::Result<()> {
    let text = match args.output {
        Output::Table => write(report),
        Output::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("failed to write to standard output")
}

/// A GPU that does not answer.
#[derive(Debug, Serialize)]
struct Silent {
    index: u32,
    error: String,
}

impl Silent {
    /// Those that the last look met.
    fn all(nvml: &NvmlBackend) -> Vec<Self> {
        nvml.silent().iter().map(|(index, error)| Self { index: *index, error: error.to_string() }).collect()
    }
}

impl fmt::Display for Silent {
    /// A line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "GPU {} does not answer: {}", self.index, self.error)
    }
}

/// The catalog's model of a GPU.
fn model(gpu: &Gpu) -> Option<&'static GpuModel> {
    catalog::by_product(&gpu.product, gpu.memory)
}
