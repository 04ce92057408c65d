//! Alibaba's trace of 2023 (openb) under FGD's protocol (Weng, USENIX ATC'23): 17 workloads on 1,213 nodes. Each is
//! shuffled and drawn from until all GPUs are asked for. No pod leaves. The figure is the part of all GPUs that is
//! allocated then. The trace is not committed.

mod fgd;
mod mersenne;
mod policy;
mod replay;
mod trace;

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::report::{Bar, Progress, as_f64, greatest, mean, print, print_bars};
use policy::Policy;
use replay::{Outcome, play};
use trace::{Node, Pod, Trace};

/// The seeds of FGD's authors.
const SEEDS: Range<u32> = 42..52;

/// One workload with the known results for it.
struct Variant {
    name: &'static str,
    /// Allocated percent, the mean of ten seeds, as FGD's authors published it (`analysis_allo_discrete.csv`).
    fgd: f64,
    /// The most that any rule can allocate: the result of a linear program that moves all pods freely and has all of
    /// them in advance.
    bound: f64,
}

const fn variant(name: &'static str, fgd: f64, bound: f64) -> Variant {
    Variant { name, fgd, bound }
}

const VARIANTS: [Variant; 17] = [
    variant("default", 95.23, 96.90),
    variant("cpu050", 95.00, 96.90),
    variant("cpu100", 95.21, 96.90),
    variant("cpu200", 94.82, 96.90),
    variant("cpu250", 93.20, 96.72),
    variant("gpushare40", 93.96, 95.65),
    variant("gpushare60", 91.26, 93.35),
    variant("gpushare80", 89.08, 91.40),
    variant("gpushare100", 86.64, 89.16),
    variant("gpuspec10", 94.66, 96.85),
    variant("gpuspec20", 94.66, 96.90),
    variant("gpuspec25", 93.91, 96.88),
    variant("gpuspec33", 87.84, 96.40),
    variant("multigpu20", 95.53, 97.34),
    variant("multigpu30", 96.36, 97.67),
    variant("multigpu40", 96.91, 98.00),
    variant("multigpu50", 97.09, 98.34),
];

/// How many copies of the nodes the timed fleet has: 4,852 nodes.
const COPIES: usize = 4;

/// Measures, if the folder of the trace was given.
pub fn run(data: Option<&Path>, quick: bool) -> anyhow::Result<()> {
    let Some(data) = data else {
        print(
            "openb: left out. The trace is not committed; give the folder of Alibaba's clusterdata, \
             cluster-trace-gpu-v2023/csv, by --data DIR",
        );
        return Ok(());
    };
    measure(data, if quick { SEEDS.start..SEEDS.start + 1 } else { SEEDS })
}

/// Measures and prints. It fails if the trace cannot be read or a decision was illegal, but not if a bar is missed.
fn measure(data: &Path, seeds: Range<u32>) -> anyhow::Result<()> {
    let trace = Trace::open(data)?;
    let workloads: Vec<Vec<Pod>> =
        VARIANTS.iter().map(|variant| trace.pods(variant.name)).collect::<anyhow::Result<_>>()?;
    let progress = Progress::new("openb: workloads", VARIANTS.len());
    let rows = on_two_threads(&workloads, |pods| {
        let row = Row::from_replays(&trace.nodes, pods, seeds.clone());
        progress.step();
        row
    });
    let time = time(&trace.nodes, workloads.first().context("no workload")?);
    print_rows(&rows, seeds.len());
    print(&format!("One decision over {} nodes: {time:.1} µs on the mean", COPIES * trace.nodes.len()));
    let illegal: Vec<&String> = rows.iter().flat_map(|row| &row.illegal).collect();
    print_bars(&bars(&rows, time, illegal.len()));
    ensure!(illegal.is_empty(), "illegal decisions: {} (the first: {})", illegal.len(), illegal[0]);
    Ok(())
}

/// Does the work for each item, the even ones on one thread and the odd ones on another. Results are in the items'
/// order.
fn on_two_threads<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let every_second = |from: usize| items.iter().skip(from).step_by(2).map(&work).collect::<Vec<R>>();
    let (even, odd) = std::thread::scope(|scope| {
        let odd = scope.spawn(|| every_second(1));
        let even = every_second(0);
        // Passes a panic of the other thread on.
        (even, odd.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (mut even, mut odd) = (even.into_iter(), odd.into_iter());
    (0..items.len()).filter_map(|item| if item % 2 == 0 { even.next() } else { odd.next() }).collect()
}

/// What each policy allocated of one workload, in percent, as the mean of the seeds.
struct Row {
    allocated: Vec<(Policy, f64)>,
    illegal: Vec<String>,
}

impl Row {
    fn from_replays(nodes: &[Node], pods: &[Pod], seeds: Range<u32>) -> Self {
        let arrivals: Vec<Vec<Pod>> = seeds.map(|seed| trace::arrivals(nodes, pods, seed)).collect();
        let mut illegal = Vec::new();
        let allocated = Policy::ALL.map(|policy| {
            let outcomes: Vec<Outcome> =
                arrivals.iter().map(|list| play(nodes, list, policy.decider(nodes, pods).as_mut())).collect();
            let value = mean(outcomes.iter().map(|outcome| outcome.allocated));
            illegal.extend(outcomes.into_iter().flat_map(|outcome| outcome.illegal));
            (policy, value)
        });
        Self { allocated: allocated.to_vec(), illegal }
    }

    fn of_policy(&self, policy: Policy) -> f64 {
        mean(self.allocated.iter().filter(|(p, _)| *p == policy).map(|(_, value)| *value))
    }
}

/// The mean time of a decision in µs, while kerf learns what is usual on the way.
fn time(nodes: &[Node], pods: &[Pod]) -> f64 {
    let nodes: Vec<Node> = std::iter::repeat_n(nodes, COPIES).flatten().cloned().collect();
    let arrivals = trace::arrivals(&nodes, pods, SEEDS.start);
    let mut decider = Policy::Kerf.decider(&nodes, pods);
    let start = Instant::now();
    // The time may include the replay's own work, because that is less than a µs for each decision.
    let outcome = play(&nodes, &arrivals, decider.as_mut());
    start.elapsed().as_secs_f64() * 1e6 / as_f64(outcome.decisions)
}

fn print_rows(rows: &[Row], seeds: usize) {
    print("");
    print(&format!(
        "openb, FGD's protocol: allocated % when all GPUs were asked for, the mean of {seeds} seeds"
    ));
    let names = Policy::ALL.iter().map(|policy| policy.name().to_owned());
    print_cells("", names.chain(["FGD, paper", "LP bound", "gap, pt"].map(str::to_owned)));
    for (variant, row) in VARIANTS.iter().zip(rows) {
        let gap = variant.bound - row.of_policy(Policy::Kerf);
        let values = row.allocated.iter().map(|(_, value)| *value).chain([variant.fgd, variant.bound, gap]);
        print_cells(variant.name, values.map(|value| format!("{value:.2}")));
    }
    let published = mean(VARIANTS.iter().map(|variant| variant.bound - variant.fgd));
    let gaps = Policy::ALL.iter().map(|policy| mean_gap(rows, *policy)).chain([published]);
    print_cells("mean gap", gaps.map(|gap| format!("{gap:.2}")));
}

fn print_cells(name: &str, cells: impl Iterator<Item = String>) {
    let cells: Vec<String> = cells.map(|cell| format!("{cell:>14}")).collect();
    print(&format!("{name:<12}{}", cells.concat()));
}

fn mean_gap(rows: &[Row], policy: Policy) -> f64 {
    mean(VARIANTS.iter().zip(rows).map(|(variant, row)| variant.bound - row.of_policy(policy)))
}

fn bars(rows: &[Row], time: f64, illegal: usize) -> [Bar; 4] {
    let below = VARIANTS.iter().zip(rows).map(|(variant, row)| variant.fgd - row.of_policy(Policy::Kerf));
    [
        Bar::at_most("openb: pt below the LP bound, mean of 17", mean_gap(rows, Policy::Kerf), 1.72, 1.4),
        Bar::at_most("openb: pt below published FGD, worst of 17", greatest(below), 0.2, 0.0),
        Bar::at_most("openb: one decision over 4,852 nodes, mean, µs", time, 100.0, 30.0),
        Bar::at_most("openb: illegal decisions", as_f64(illegal), 0.0, 0.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_keep_the_order() {
        for count in 0..6 {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(
                on_two_threads(&items, |item| 2 * item),
                items.iter().map(|i| 2 * i).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn no_workload_is_published_above_its_bound() {
        assert!(VARIANTS.iter().all(|variant| variant.fgd < variant.bound));
    }
}
