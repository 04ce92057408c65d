//! Feeds random bytes and documents to all code that parses users' input, on all cores.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args as ClapArgs;
use kerf_tests::fuzz::{Report, Target, run as feed};

use crate::report::{Figure, print, print_figures};

/// How often the progress of a target is printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Inputs for each target.
    #[arg(long, default_value_t = 10_000_000)]
    inputs: u64,
    /// The seed of all inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these targets: review, quantity, names, policy, request.
    #[arg(long = "target", value_parser = target)]
    targets: Vec<Target>,
}

fn target(name: &str) -> Result<Target, String> {
    let known = || Target::ALL.map(Target::name).join(", ");
    Target::ALL.into_iter().find(|t| t.name() == name).ok_or_else(|| format!("write one of {}", known()))
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let targets = if args.targets.is_empty() { Target::ALL.to_vec() } else { args.targets.clone() };
    let threads = std::thread::available_parallelism()?.get();
    let (mut figures, mut defects) = (Vec::new(), 0);
    for target in targets {
        let (begun, reported) = (Instant::now(), Mutex::new(Instant::now()));
        let progress = |done: u64| {
            // If another thread holds the lock, that thread prints the progress.
            let Ok(mut reported) = reported.try_lock() else { return };
            if reported.elapsed() >= PROGRESS_INTERVAL {
                *reported = Instant::now();
                print(&format!("# {}: {done} of {}", target.name(), args.inputs));
            }
        };
        let report = feed(target, args.seed, args.inputs, threads, progress)?;
        show(target, args.seed, &report, begun.elapsed());
        defects += report.defects.len();
        let name = format!("{}: inputs", target.name());
        figures.push(Figure::at_least(&name, count(report.inputs)?, 10_000_000.0));
        let name = format!("{}: panics and answers that do not hold", target.name());
        figures.push(Figure::at_most(&name, count(report.defects.len().try_into()?)?, 0.0));
    }
    print_figures(&figures);
    ensure!(defects == 0, "{defects} inputs were answered wrongly");
    Ok(())
}

fn show(target: Target, seed: u64, report: &Report, took: Duration) {
    let (name, inputs, accepted) = (target.name(), report.inputs, report.accepted);
    print(&format!("# {name}: {inputs} inputs in {:.0} s, {accepted} taken as good", took.as_secs_f64()));
    for defect in &report.defects {
        print(&format!("# {name}, seed {seed}, input {}: {}", defect.number, defect.what));
        print(&format!("{:?}", String::from_utf8_lossy(&defect.input)));
    }
}

fn count(number: u64) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(number)?))
}
