//! `kerf bench`: measures what sharing a GPU costs, on any cluster that kerf serves.
//!
//! Each measured point is a Deployment of clients (`deploy/examples/sharing/client`) that ask kerf for slices of one
//! GPU. Their logs have every turn; only turns count in which all copies were warm. These modules decide without I/O:
//! what to measure ([`plan`]), the objects ([`subject`], [`objects`]), whether the copies got what the row says
//! ([`granted`]), the figures ([`window`]), the forecasts, the tables and the picture. [`trial`] talks to the cluster.

mod args;
mod cluster;
mod follow;
mod forecast;
mod granted;
mod lines;
mod measure;
mod neighbours;
mod objects;
mod picture;
mod plan;
mod pod_state;
mod profile;
mod publish;
mod reference;
mod report;
mod results;
mod sensors;
mod sharing;
mod subject;
mod table;
mod technology;
mod trial;
mod window;

use clap::Subcommand;
pub use plan::PlanError;
pub use results::{
    Failed, Figures, Fit, Forecast, Gpu, LeftOut, Neighbour, NeighbourResults, Point, ProfileResults,
    Results, VERSION,
};
pub use technology::Technology;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure copies of one workload under each way of sharing a GPU, beside the reference's A100.
    Sharing(args::SharingArgs),
    /// Measure what a pod does to a GPU by two short runs, and say what it would be like beside others.
    Profile(args::ProfileArgs),
    /// Measure a workload in MIG instances, alone and beside a noisy neighbour on the same GPU.
    Neighbours(args::NeighboursArgs),
    /// Put the `results.json` of several runs of `sharing` into one table and one picture.
    Report(args::ReportArgs),
}

pub fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Sharing(args) => sharing::run(args),
        Command::Profile(args) => profile::run(args),
        Command::Neighbours(args) => neighbours::run(args),
        Command::Report(args) => report::run(args),
    }
}
