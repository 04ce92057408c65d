//! kerf on the command line.
#![forbid(unsafe_code)]

use clap::{CommandFactory, Parser, Subcommand};
use kerf_cli::{
    bench, check, completion, explain, failure, gpu, manage, nodes, policy, release, scheduler_config,
    simulate, uninstall,
};
use std::process::ExitCode;

/// GPUs cut to size for Kubernetes pods.
#[derive(Debug, Parser)]
#[command(name = "kerf", version = kerf_runtime::VERSION)]
struct Cli {
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
    /// Print what a shell needs to complete these commands.
    Completion(completion::Args),
    /// Say how a command line goes on, as kubectl asks for it.
    #[command(hide = true)]
    CompleteForKubectl(completion::Words),
    /// Say what a node's NVML says of its GPUs.
    #[command(subcommand)]
    Gpu(gpu::Command),
    /// Say why a pod is where it is, or why it waits, by what is recorded of it.
    Explain(explain::Args),
    /// Hand nodes over from NVIDIA's device plugin to kerf.
    Manage(manage::Args),
    /// Draw each node's GPUs as their slices, with who holds them.
    Nodes(nodes::Args),
    /// Print the KubeSchedulerConfiguration for a scheduler that asks kerf's extender.
    SchedulerConfig(scheduler_config::Args),
    /// Work with policy files.
    #[command(subcommand)]
    Policy(policy::Command),
    /// Give a node back to NVIDIA's device plugin, while kerf stays on the others.
    Release(release::Args),
    /// Say what kerf would decide for a list of jobs.
    Simulate(simulate::Args),
    /// Leave the cluster's nodes, and delete what kerf's programs made for themselves.
    #[command(subcommand)]
    Uninstall(uninstall::Command),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Bench(command) => bench::run(&command),
        Command::Check(args) => match check::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Completion(args) => completion::print(&args, Cli::command()),
        Command::CompleteForKubectl(words) => completion::complete(&words, Cli::command()),
        Command::Gpu(command) => gpu::run(&command),
        Command::Explain(args) => explain::run(&args),
        Command::Manage(args) => manage::run(&args),
        Command::Nodes(args) => nodes::run(&args),
        Command::SchedulerConfig(args) => scheduler_config::print(&args),
        Command::Policy(command) => policy::run(&command, &mut std::io::stdout().lock()),
        Command::Release(args) => release::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Uninstall(command) => uninstall::run(&command),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("Error: {}", failure::told(&error));
    // As for a bad flag: the input is wrong, not the program.
    ExitCode::from(if error.is::<simulate::InputError>() || gpu::is_input(&error) { 2 } else { 1 })
}
