//! Benchmarks on the local control plane with simulated GPUs. Run them by `cargo xtask bench <name>`, which
//! first builds optimised programs.
#![forbid(unsafe_code)]

mod accept;
mod admission;
mod admission_metrics;
mod agent;
mod beside_nothing;
mod bound;
mod burst;
mod churn;
mod dashboard;
mod faults;
mod fuzz;
mod install;
mod kills;
mod leaders;
mod memory;
mod outage;
mod process;
mod report;
mod scheduler;
mod stranded;
mod walk;

use clap::{Parser, Subcommand};

/// Measurements; each prints its figures beside the bars that it is held to.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// From created to bound: one pod at a time on new and on idle slices, and a burst.
    Walk(walk::Args),
    /// From created to bound under load, beside a scheduler without kerf: rates, CPU and requests a pod.
    Scheduler(scheduler::Args),
    /// A job list through the real scheduler, beside what `kerf simulate` decides for it.
    Accept(accept::Args),
    /// A burst of pods beyond the first kind's room, through three webhooks and two extenders.
    Burst(burst::Args),
    /// Pods that wait though a kind that they may have has room where they may go, in random clusters.
    Stranded(stranded::Args),
    /// Random creates and deletes on the demo's nodes, every invariant recomputed after each round.
    Churn(churn::Args),
    /// A random program of kerf is killed every few seconds during a churn of pods.
    Kills(kills::Args),
    /// The node agent by itself: how soon a slice is ready, and what it costs at rest.
    Agent(agent::Args),
    /// Every NVML call and MPS control word of the agent fails, hangs and is its last, during a churn of cuts.
    Faults(faults::Args),
    /// The webhook: what it adds to a pod's creation, rotation and restarts under load, memory.
    Admission(admission::Args),
    /// What pods that ask nothing of kerf notice while its webhook is gone or hangs.
    Outage(outage::Args),
    /// From `helm install` to the first pod on a slice.
    Install(install::Args),
    /// The extender's leader is killed, frozen, cut off and ended under a load of pods, and the API server stalls.
    Leaders(leaders::Args),
    /// The extender's memory with 5,000 nodes, their agents' streams and 100,000 pods.
    Memory(memory::Args),
    /// Draws what Prometheus answers to the dashboard's queries while pods come and go.
    Dashboard(dashboard::Args),
    /// Random bytes and documents into all that reads what users write.
    Fuzz(fuzz::Args),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Walk(args) => walk::run(&args).await,
        Bench::Scheduler(args) => Box::pin(scheduler::run(&args)).await,
        Bench::Accept(args) => accept::run(&args).await,
        Bench::Burst(args) => Box::pin(burst::run(&args)).await,
        Bench::Stranded(args) => Box::pin(stranded::run(&args)).await,
        Bench::Churn(args) => churn::run(&args).await,
        Bench::Kills(args) => kills::run(&args).await,
        Bench::Agent(args) => agent::run(&args).await,
        Bench::Faults(args) => faults::run(&args).await,
        Bench::Admission(args) => admission::run(&args).await,
        Bench::Outage(args) => outage::run(&args).await,
        Bench::Install(args) => install::run(&args).await,
        Bench::Leaders(args) => leaders::run(&args).await,
        Bench::Memory(args) => Box::pin(memory::run(&args)).await,
        Bench::Dashboard(args) => Box::pin(dashboard::run(&args)).await,
        Bench::Fuzz(args) => fuzz::run(&args),
    }
}
