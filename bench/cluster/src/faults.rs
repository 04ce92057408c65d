//! Injects every fault into every NVML call and every MPS control command of the agent, during a churn of
//! cuts.

use std::time::Duration;

use anyhow::ensure;
use clap::Args as ClapArgs;
use kerf_tests::fault_matrix::{self, Settings, Verdict};

use crate::report::{Figure, print, print_figures};

/// How much, and how random.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The whole matrix: an hour or so on two cores.
    #[arg(long)]
    all: bool,
    /// Cells to play, first of each call one.
    #[arg(long, default_value_t = 60, conflicts_with = "all")]
    sample: usize,
    /// Only calls with this in their names.
    #[arg(long)]
    only: Option<String>,
    /// The seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Nodes that are played on at the same time.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    nodes: u8,
    /// The agents' probe period, in milliseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..))]
    period_ms: u64,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let settings = Settings {
        period: Duration::from_millis(args.period_ms),
        nodes: args.nodes.into(),
        seed: args.seed,
        sample: (!args.all).then_some(args.sample),
        only: args.only.clone(),
        lenient: false,
    };
    let report = fault_matrix::run(&settings, |line| print(&format!("# {line}"))).await?;
    print(&report.table());
    let failures = report.failures();
    for failure in &failures {
        print(failure);
    }
    let count = |is: fn(&Verdict) -> bool| {
        crate::report::count(report.cells.values().filter(|verdict| is(verdict)).count())
    };
    let sound = count(|verdict| matches!(verdict, Verdict::Sound(_)));
    print(&format!(
        "{sound} cells sound, settled within {:.1} s of the fault's end",
        report.slowest().as_secs_f64()
    ));
    print_figures(&[
        Figure::at_most("broken cells", count(|v| matches!(v, Verdict::Broken(_))), 0.0),
        Figure::at_most("empty cells", count(|v| *v == Verdict::NotStruck), 0.0),
    ]);
    ensure!(failures.is_empty(), "seed {}: {} cells are broken or empty", args.seed, failures.len());
    Ok(())
}
