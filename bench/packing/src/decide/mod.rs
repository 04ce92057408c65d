//! `decide`: times one decision as the fleet grows, and checks that no decision or plan is illegal.

mod choice;
mod churn;
mod cost;
mod fraction;
mod legality;
mod plans;

use anyhow::ensure;
use clap::Args as ClapArgs;

use crate::report::{Bar, as_f64, print, print_bars, print_row};
use cost::Cost;

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Decisions that are timed in each fleet.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1000..))]
    decisions: u32,
    /// Decisions and plans that are looked at for faults.
    #[arg(long, default_value_t = 1_000_000)]
    plans: usize,
}

/// Fleet sizes: nodes of eight GPUs, up to 50,000 of them.
const GPUS: [usize; 4] = [800, 8_000, 40_000, 400_000];

/// Measures and prints. It fails if a decision or a plan was illegal, but not if a bar is missed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for gpus in GPUS {
        eprintln!("# decide: {gpus} GPUs");
        costs.push(cost::measure(gpus, usize::try_from(args.decisions)?)?);
    }
    print_costs(&costs);
    let share = fraction::run()?;
    let (choice, chosen) = choice::run()?;
    eprintln!("# decide: {} decisions and plans", args.plans);
    let mut found = plans::run(args.plans)?;
    print("");
    print(&format!(
        "{} decisions and {} plans on {} GPU models: {} illegal",
        found.decisions,
        found.plans,
        found.models,
        found.illegal.len()
    ));
    found.illegal.extend(chosen.illegal);
    let mut bars = bars(&costs, found.illegal.len());
    bars.extend([share, choice]);
    print_bars(&bars);
    ensure!(found.illegal.is_empty(), "illegal decisions or plans; the first: {}", found.illegal[0]);
    Ok(())
}

fn print_costs(costs: &[Cost]) {
    print("");
    print(
        "Cost of one decision in ns: mean, and what 99 of 100 do not exceed. Uniform mix, load 0.95, one thread.",
    );
    print(
        "Steady state: as many jobs as run at that load come at once to uncut GPUs, then three mean lives pass.",
    );
    print_row("GPUs", 22, ["best", "take", "release", "best, take, release"].map(str::to_owned));
    for cost in costs {
        let cells = [cost.best, cost.take, cost.release, cost.cycle];
        print_row(&cost.gpus.to_string(), 22, cells.map(|t| format!("{:.0} / {:.0}", t.mean, t.p99)));
    }
}

fn bars(costs: &[Cost], illegal: usize) -> Vec<Bar> {
    let at = |gpus: usize| costs.iter().find(|cost| cost.gpus == gpus);
    let mut bars = Vec::new();
    if let (Some(small), Some(large)) = (at(800), at(40_000)) {
        bars.extend([
            Bar::at_most("one decision at 40,000 GPUs, mean, µs", large.best.mean / 1000.0, 1.0, 0.4),
            Bar::at_most(
                "one decision, time(40,000) / time(800)",
                large.best.mean / small.best.mean,
                4.0,
                3.0,
            ),
            Bar::at_most(
                "best, take and release, time(40,000) / time(800)",
                large.cycle.mean / small.cycle.mean,
                4.0,
                3.0,
            ),
        ]);
    }
    bars.push(Bar::at_most("illegal decisions and plans", as_f64(illegal), 0.0, 0.0));
    bars
}
