//! kerf on the command line.
#![forbid(unsafe_code)]

mod policy;
mod scheduler_config;

use clap::{Parser, Subcommand};

/// GPUs cut to size for Kubernetes pods.
#[derive(Debug, Parser)]
#[command(name = "kerf", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the KubeSchedulerConfiguration for a scheduler that asks kerf's extender.
    SchedulerConfig(scheduler_config::Args),
    /// Work with policy files.
    #[command(subcommand)]
    Policy(policy::Command),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::SchedulerConfig(args) => scheduler_config::print(&args),
        Command::Policy(command) => policy::run(&command),
    }
}
