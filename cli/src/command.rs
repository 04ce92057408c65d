//! The command line as a whole.

use crate::exit::Exit;
#[cfg(target_os = "linux")]
use crate::gpu;
use crate::{
    bench, check, completion, explain, manage, nodes, output, policy, release, scheduler_config, simulate,
    uninstall, version,
};
use clap::{ColorChoice, Parser, Subcommand};

/// GPUs cut to size for Kubernetes pods.
#[derive(Debug, Parser)]
#[command(name = "kerf", version = kerf_runtime::VERSION, after_long_help = Exit::table())]
pub struct Cli {
    /// When to print colours: `auto` on a terminal, unless `NO_COLOR` is set or TERM is dumb.
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t = ColorChoice::Auto,
        hide_short_help = true,
        help_heading = "Appearance"
    )]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure what sharing a GPU costs, with pods on a cluster.
    #[command(subcommand)]
    Bench(Box<bench::Command>),
    /// Say whether a cluster can have kerf, or whether kerf works there, with a remedy for what does not.
    Check(check::Args),
    /// Print what a shell, or kubectl, needs to complete these commands.
    Completion(completion::Args),
    /// Say why pods are where they are, or why they wait, by what is recorded of them.
    Explain(explain::Args),
    /// Say what a node's NVML says of its GPUs.
    #[cfg(target_os = "linux")]
    #[command(subcommand)]
    Gpu(gpu::Command),
    /// Hand nodes over from NVIDIA's device plugin to kerf.
    Manage(manage::Args),
    /// Draw each node's GPUs as their slices, with who holds them.
    Nodes(nodes::Args),
    /// Work with policy files.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Give a node back to NVIDIA's device plugin, while kerf stays on the others.
    Release(release::Args),
    /// Print the KubeSchedulerConfiguration for a scheduler that asks kerf's extender.
    SchedulerConfig(scheduler_config::Args),
    /// Say what kerf would decide for a list of jobs.
    Simulate(simulate::Args),
    /// Leave the cluster's nodes, and delete what kerf's programs made for themselves.
    #[command(subcommand)]
    Uninstall(uninstall::Command),
    /// Print the versions of this program, of kerf's programs in the cluster and of Kubernetes.
    Version(version::Args),
}

impl Cli {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.color {
            ColorChoice::Auto => anstream::ColorChoice::Auto,
            ColorChoice::Always => anstream::ColorChoice::Always,
            ColorChoice::Never => anstream::ColorChoice::Never,
        }
        .write_global();
        match self.command {
            Command::Bench(command) => bench::run(&command),
            Command::Check(args) => return check::run(&args),
            Command::Completion(args) => completion::print(&args),
            Command::Explain(args) => explain::run(&args),
            #[cfg(target_os = "linux")]
            Command::Gpu(command) => gpu::run(&command),
            Command::Manage(args) => manage::run(&args),
            Command::Nodes(args) => nodes::run(&args),
            Command::Policy(command) => policy::run(&command, &mut output::stdout()),
            Command::Release(args) => release::run(&args),
            Command::SchedulerConfig(args) => scheduler_config::print(&args),
            Command::Simulate(args) => simulate::run(&args),
            Command::Uninstall(command) => uninstall::run(&command),
            Command::Version(args) => version::run(&args),
        }
        .map(|()| Exit::Done)
    }
}
