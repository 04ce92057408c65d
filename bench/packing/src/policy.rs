//! `policy`: times how long it takes to find a pod's policy among many, of which the last matches, and to decide the
//! pod by it. The decision is what the webhook does between the pod's JSON and the pod's slices.

use std::fmt;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use clap::Args as ClapArgs;
use kerf_core::admission::decide;
use kerf_core::policy::{Policies, Policy, PolicyDocument, Supply};
use kerf_core::request::PodView;
use kerf_core::testing::node_status;
use serde_json::{Value, json};

use crate::report::{Bar, as_f64, print_bars};

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// How many policies there are.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    rules: u32,
    /// Decisions that are timed.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..))]
    decisions: u32,
}

/// The pod's namespace, which policies match.
const NAMESPACE: &str = "research-vision";
/// The most microseconds that a decision among 1,000 policies may take.
const BAR: f64 = 50.0;

/// Measures and prints. It fails if a wrong policy was found, but not if the bar is missed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let pod = pod();
    let facts = serde_json::from_value::<PodView>(pod.clone())?.facts(NAMESPACE, &[]);
    let supply = Supply::from_statuses(&[node_status(&["H100-80GB"; 8]), node_status(&["T4-16GB"; 4])]);
    let last = format!("p{}", args.rules - 1);
    let mut bars = Vec::new();
    for apart in [Apart::Labels, Apart::Beginnings] {
        let pods = (0..args.rules).map(|index| policy(index, apart, index + 1 == args.rules));
        let policies = Policies { pods: pods.collect::<anyhow::Result<_>>()?, nodes: Vec::new() };
        let admitted = decide(&pod, NAMESPACE, &policies, &supply)?.context("the pod asks for nothing")?;
        let found = admitted.document.chosen;
        ensure!(found.is_some_and(|chosen| chosen.policy == last), "not the last policy was found");
        let find = times(args.decisions, || policies.for_pod(black_box(&facts)));
        let whole = times(args.decisions, || decide(black_box(&pod), NAMESPACE, &policies, &supply));
        for (what, times) in [("find the policy", find), ("decide a pod", whole)] {
            for part in [50, 99] {
                let figure =
                    format!("to {what} among {} distinguished by {apart}, {part} of 100, µs", args.rules);
                bars.push(Bar::at_most(&figure, micros(&times, part), BAR, BAR / 2.0));
            }
        }
    }
    print_bars(&bars);
    Ok(())
}

/// The last field, which alone distinguishes the policies.
#[derive(Debug, Clone, Copy)]
enum Apart {
    /// The value of a label, as in policies for teams.
    Labels,
    /// The prefix of the service account's name, which only a comparison of strings distinguishes.
    Beginnings,
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Labels => "labels",
            Self::Beginnings => "beginnings",
        })
    }
}

/// The time that `part` of a hundred calls did not exceed, in µs.
fn micros(sorted: &[u64], part: usize) -> f64 {
    as_f64(usize::try_from(sorted[sorted.len() * part / 100]).unwrap_or(usize::MAX)) / 1e3
}

/// A policy that matches the pod in all fields but the last, and in that too if `is_for_the_pod`.
fn policy(index: u32, apart: Apart, is_for_the_pod: bool) -> anyhow::Result<Policy> {
    let team = if is_for_the_pod { "the-pods-team".to_owned() } else { format!("team-{index}") };
    let mut matched = json!({
        "namespaces": [format!("other-{index}"), "research-*"],
        "priorityClasses": ["batch", "training"],
    });
    match apart {
        Apart::Labels => {
            matched["labels"] = json!({"app.kubernetes.io/name": "trainer", "example.com/team": team});
        }
        Apart::Beginnings => matched["serviceAccounts"] = json!([format!("{team}-*")]),
    }
    let document: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": kerf_core::keys::API_VERSION,
        "kind": "GpuPolicy",
        "metadata": {"name": format!("p{index}")},
        "spec": {
            "match": matched,
            "defaultIsolation": "memory",
            "isolation": {"memory": ["mig", "mps"]},
        },
    }))?;
    Ok(document.try_into()?)
}

fn pod() -> Value {
    json!({
        "metadata": {
            "labels": {"app.kubernetes.io/name": "trainer", "example.com/team": "the-pods-team"},
            "annotations": {"kerf.dev/gpu-memory.main": "10Gi"},
        },
        "spec": {
            "priorityClassName": "training",
            "serviceAccountName": "the-pods-team-runner",
            "containers": [{"name": "main", "resources": {"limits": {"cpu": "4"}}}, {"name": "side"}],
        },
    })
}

/// Nanoseconds of each of `calls` calls, ascending.
fn times<R>(calls: u32, mut call: impl FnMut() -> R) -> Vec<u64> {
    let mut time = || {
        let begun = Instant::now();
        black_box(call());
        u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    };
    let mut times: Vec<u64> = (0..calls).map(|_| time()).collect();
    times.sort_unstable();
    times
}
