//! Measures how well and how fast kerf packs lists of jobs, without a cluster. `cargo xtask bench packing`,
//! `cargo xtask bench decide`, `cargo xtask bench policy` and `cargo xtask bench offers` run it, and build it optimised
//! first.
#![forbid(unsafe_code)]

mod board;
mod decide;
mod jobs;
mod offers;
mod openb;
mod oracle;
mod packing;
mod policy;
mod profile;
mod random;
mod replay;
mod report;
mod rivals;

use clap::{Parser, Subcommand};

/// Measurements of packing; each prints its figures beside the bars that it is held to.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// How much of what was asked is placed, beside an oracle that moves freely and beside the rules of others.
    Packing(packing::Args),
    /// What one decision costs in fleets of 800 to 400,000 GPUs, and whether any decision or plan is illegal.
    Decide(decide::Args),
    /// How long it takes to find a pod's policy among 1,000.
    Policy(policy::Args),
    /// Whether pods hold what they have reserved, whatever the kubelet picks of the devices of a name.
    Offers(offers::Args),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().bench {
        Bench::Packing(args) => packing::run(&args),
        Bench::Decide(args) => decide::run(&args),
        Bench::Policy(args) => policy::run(&args),
        Bench::Offers(args) => offers::run(&args),
    }
}
