//! Finds pods that are pending although one of their kinds has capacity on a node that they may use. Random
//! small clusters are judged twice: by core's decision alone, and through kube-scheduler and the extender.
//! The expected result comes from code that shares nothing with kerf-core.

use std::collections::BTreeMap;

use anyhow::ensure;
use clap::Args as ClapArgs;
use kerf_tests::stranded::{Case, Scene, Verdict, decide};

use crate::report::{self, Figure, print, print_figures};

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Clusters with a pod each that core's decision alone is asked about.
    #[arg(long, default_value_t = 1000)]
    cases: u64,
    /// The first of them that go through kube-scheduler and the extender too.
    #[arg(long, default_value_t = 120)]
    scheduled: u64,
    /// The number of the first case.
    #[arg(long, default_value_t = 0)]
    first: u64,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.scheduled <= args.cases, "--scheduled is of --cases");
    let cases: Vec<Case> = (args.first..args.first + args.cases).map(Case::random).collect();
    let decided = cases.iter().map(decide).collect::<anyhow::Result<Vec<_>>>()?;
    let mut figures = tell("core's decision", args.first, &cases, &decided);
    let chosen = &cases[..usize::try_from(args.scheduled)?];
    if !chosen.is_empty() {
        let scene = Scene::start().await?;
        let outcome = scene.judge(chosen).await?;
        scene.stop().await?;
        figures.extend(tell("the scheduler", args.first, chosen, &outcome.verdicts));
        for (number, refusal) in &outcome.refusals {
            match outcome.verdicts.get(*number) {
                Some(Verdict::Waits) | None => {}
                Some(verdict) => print(&format!("# pod {number}, {verdict:?}, waited at first: {refusal}")),
            }
        }
    }
    print_figures(&figures);
    Ok(())
}

/// Prints how the pods fared, and the wrong verdicts one by one.
fn tell(by: &str, first: u64, cases: &[Case], verdicts: &[Verdict]) -> Vec<Figure> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (number, verdict) in (first..).zip(verdicts) {
        *counts.entry(format!("{verdict:?}")).or_default() += 1;
        if verdict.is_wrong() {
            print(&format!("case {number}, by {by}: {verdict:?}"));
        }
    }
    let is_later = |(case, verdict): &(&Case, &Verdict)| match verdict {
        Verdict::Served(kind) => case.pod.kinds.first() != Some(kind),
        _ => false,
    };
    let later = cases.iter().zip(verdicts).filter(is_later).count();
    print(&format!(
        "# {} pods by {by}: {counts:?}; {later} by a kind that is not their first",
        verdicts.len()
    ));
    let count =
        |is: fn(&Verdict) -> bool| report::count(verdicts.iter().filter(|verdict| is(verdict)).count());
    let stranded = count(|verdict| matches!(verdict, Verdict::Stranded(_)));
    let otherwise = count(|verdict| verdict.is_wrong()) - stranded;
    vec![
        Figure::at_most(&format!("{by}: pods stranded"), stranded, 0.0),
        Figure::at_most(&format!("{by}: a kind without room, or not the best"), otherwise, 0.0),
    ]
}
