//! `policy`: how long it takes to find the policy for a pod among many, the last of which is the one.

use std::hint::black_box;
use std::time::Instant;

use anyhow::ensure;
use clap::Args as ClapArgs;
use kerf_core::policy::{PodFacts, Policies, Policy, PolicyDocument};
use serde_json::json;

use crate::report::{Bar, as_f64, print_bars};

/// What to measure.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// How many policies there are.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    rules: u32,
    /// Decisions that are timed.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..))]
    decisions: u32,
}

/// Microseconds that a decision among 1,000 policies may take.
const BAR: f64 = 50.0;

/// Measures and prints. It fails where a wrong policy was found, not where the bar is missed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let pods = (0..args.rules).map(|index| policy(index, index + 1 == args.rules));
    let policies = Policies { pods: pods.collect::<anyhow::Result<_>>()?, nodes: Vec::new() };
    let pod = pod();
    let last = format!("p{}", args.rules - 1);
    ensure!(
        policies.of_pod(&pod).is_some_and(|policy| policy.name() == last),
        "not the last policy was found"
    );
    let mut times: Vec<u64> = (0..args.decisions).map(|_| time(&policies, &pod)).collect();
    times.sort_unstable();
    let micros =
        |part: usize| as_f64(usize::try_from(times[times.len() * part / 100]).unwrap_or(usize::MAX)) / 1e3;
    print_bars(&[
        Bar::at_most(&format!("median of {} policies, µs", args.rules), micros(50), BAR, BAR / 2.0),
        Bar::at_most(
            &format!("99 of 100 decisions among {} policies, µs", args.rules),
            micros(99),
            BAR,
            BAR / 2.0,
        ),
    ]);
    Ok(())
}

/// A policy that is looked at field by field to its last label, unless it is for the pod.
fn policy(index: u32, is_for_the_pod: bool) -> anyhow::Result<Policy> {
    let team = if is_for_the_pod { "the-pods-team".to_owned() } else { format!("team-{index}") };
    let document: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": format!("{}/{}", kerf_core::keys::GROUP, kerf_core::keys::VERSION),
        "kind": "GpuPolicy",
        "metadata": {"name": format!("p{index}")},
        "spec": {
            "match": {
                "namespaces": [format!("other-{index}"), "research-*"],
                "priorityClasses": ["batch", "training"],
                "labels": {"app.kubernetes.io/name": "trainer", "example.com/team": team},
            },
            "defaultIsolation": "memory",
            "isolation": {"memory": ["mig", "mps"]},
        },
    }))?;
    Ok(document.try_into()?)
}

fn pod() -> PodFacts {
    let labels = [("app.kubernetes.io/name", "trainer"), ("example.com/team", "the-pods-team")];
    PodFacts {
        namespace: "research-vision".to_owned(),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        priority_class: "training".to_owned(),
        ..PodFacts::default()
    }
}

/// Nanoseconds of one decision.
fn time(policies: &Policies, pod: &PodFacts) -> u64 {
    let begun = Instant::now();
    black_box(black_box(policies).of_pod(black_box(pod)));
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
