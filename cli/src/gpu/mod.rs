//! `kerf gpu`: what NVML reports about this machine's GPUs. It changes nothing.

mod list;
mod profiles;

use crate::output::{self, Format};
use anyhow::Context as _;
use clap::{Args as ClapArgs, Subcommand};
use kerf_core::mig::catalog::{self, GpuModel};
use kerf_nvml::{Gpu, GpuBackend as _, GpuError, NvmlBackend};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;

const LIST: &str = "\
Examples:
  # The GPUs of this machine
  kerf gpu list

  # Their UUIDs
  kerf gpu list -o json | jq -r '.gpus[].uuid'";

const PROFILES: &str = "\
Examples:
  # What MIG offers on the GPUs of this machine
  kerf gpu profiles

  # By an NVML in another place
  kerf gpu profiles --nvml /run/nvidia/driver/usr/lib64/libnvidia-ml.so.1";

/// What to say of them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the GPUs, what is cut from them and what runs on them.
    #[command(after_help = LIST)]
    List(Args),
    /// List what MIG offers on each GPU, and where kerf's catalog says something else.
    #[command(after_help = PROFILES)]
    Profiles(Args),
}

/// Where to ask, and how to answer.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// NVML: a path, or a name that the loader finds.
    #[arg(long, default_value = "libnvidia-ml.so.1", value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    nvml: OsString,
    /// The form.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[]))]
    output: Format,
}

pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::List(args) => output::print(&list::report(open(args)?)?, args.output),
        Command::Profiles(args) => output::print(&profiles::report(open(args)?)?, args.output),
    }
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

#[derive(Debug, Serialize)]
struct Unreadable {
    index: u32,
    error: String,
}

impl Unreadable {
    fn all(nvml: &NvmlBackend) -> Vec<Self> {
        nvml.unresponsive()
            .iter()
            .map(|(index, error)| Self { index: *index, error: error.to_string() })
            .collect()
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "GPU {} does not answer: {}", self.index, self.error)
    }
}

fn model(gpu: &Gpu) -> Option<&'static GpuModel> {
    catalog::by_product(&gpu.product, gpu.memory)
}
