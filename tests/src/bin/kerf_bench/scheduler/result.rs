//! What was measured, its medians, and how kerf's are beside the control's.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::side::Kind;
use crate::report::{Latency, print};

/// Rarer requests are in the JSON only.
const SHOWN: f64 = 0.02;

/// One scene in one cluster.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Pods that were created.
    pub pods: usize,
    /// Those that were not bound in time.
    pub unbound: usize,
    /// Pods bound a second, from the first creation's begin to the last one's Binding.
    pub rate: f64,
    /// From created to bound.
    pub latency: Latency,
    /// CPU milliseconds for each pod, by program.
    pub cpu_ms: BTreeMap<String, f64>,
    /// Requests for each pod, by verb and resource.
    pub requests: BTreeMap<String, f64>,
    /// Memory of each program, MiB.
    pub resident_mib: BTreeMap<String, f64>,
}

impl Measured {
    /// The median of each figure over rounds of one scene; `None` of none.
    pub fn median(rounds: &[&Self]) -> Option<Self> {
        let of = |figure: &dyn Fn(&Self) -> f64| median(rounds.iter().map(|one| figure(one)).collect());
        let maps = |map: &dyn Fn(&Self) -> &BTreeMap<String, f64>| {
            let names: BTreeSet<&String> = rounds.iter().flat_map(|one| map(one).keys()).collect();
            let value = |name: &String| of(&|one| map(one).get(name).copied().unwrap_or_default());
            names.into_iter().map(|name| (name.clone(), value(name))).collect()
        };
        let first = rounds.first()?;
        Some(Self {
            pods: first.pods,
            unbound: rounds.iter().map(|one| one.unbound).max()?,
            rate: of(&|one| one.rate),
            latency: Latency {
                count: first.latency.count,
                p50_ms: of(&|one| one.latency.p50_ms),
                p99_ms: of(&|one| one.latency.p99_ms),
                max_ms: of(&|one| one.latency.max_ms),
            },
            cpu_ms: maps(&|one| &one.cpu_ms),
            requests: maps(&|one| &one.requests),
            resident_mib: maps(&|one| &one.resident_mib),
        })
    }

    /// The figures in a line.
    pub fn line(&self) -> String {
        let unbound = if self.unbound > 0 { format!(", {} NOT BOUND", self.unbound) } else { String::new() };
        format!(
            "{:>6.1}/s  p50 {:>8.1} ms  p99 {:>8.1} ms  CPU ms a pod: {}{unbound}",
            self.rate,
            self.latency.p50_ms,
            self.latency.p99_ms,
            joined(&self.cpu_ms, 0.0, 1),
        )
    }
}

fn joined(figures: &BTreeMap<String, f64>, least: f64, digits: usize) -> String {
    let shown = figures.iter().filter(|(_, value)| **value >= least);
    shown.map(|(name, value)| format!("{name} {value:.digits$}")).collect::<Vec<_>>().join(", ")
}

/// The middle one, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    match (values.get(low), values.get(high)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => f64::NAN,
    }
}

/// One scene on clusters of one size.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Nodes.
    pub nodes: usize,
    /// The scene's name.
    pub scene: String,
    /// Medians with kerf.
    pub kerf: Measured,
    /// Medians of the control.
    pub control: Measured,
    /// kerf's bound pods a second over the control's.
    pub rate_ratio: f64,
    /// kerf's created → bound p50 less the control's, ms.
    pub p50_more_ms: f64,
    /// CPU of the API server over the control's.
    pub apiserver_ratio: f64,
}

impl Row {
    /// Of one scene's rounds.
    pub fn of(nodes: usize, scene: &str, rounds: &[(Kind, Measured)]) -> Option<Self> {
        let of = |kind| {
            let rounds: Vec<_> = rounds.iter().filter(|(of, _)| *of == kind).map(|(_, one)| one).collect();
            Measured::median(&rounds)
        };
        let (kerf, control) = (of(Kind::Kerf)?, of(Kind::Control)?);
        let apiserver = |one: &Measured| one.cpu_ms.get("apiserver").copied().unwrap_or(f64::NAN);
        Some(Self {
            nodes,
            scene: scene.to_owned(),
            rate_ratio: kerf.rate / control.rate,
            p50_more_ms: kerf.latency.p50_ms - control.latency.p50_ms,
            apiserver_ratio: apiserver(&kerf) / apiserver(&control),
            kerf,
            control,
        })
    }

    /// Prints it.
    pub fn print(&self) {
        print(&format!("\n{} nodes, {}", self.nodes, self.scene));
        for (kind, measured) in [(Kind::Kerf, &self.kerf), (Kind::Control, &self.control)] {
            let name = kind.name();
            print(&format!("  {name:<8} {}", measured.line()));
            print(&format!("  {:<8} requests a pod: {}", "", joined(&measured.requests, SHOWN, 2)));
            print(&format!("  {:<8} MiB: {}", "", joined(&measured.resident_mib, 0.0, 0)));
        }
        print(&format!(
            "  kerf / control: rate {:.2}, API server CPU {:.2}; p50 {:+.1} ms",
            self.rate_ratio, self.apiserver_ratio, self.p50_more_ms
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0]) - 2.5).abs() < f64::EPSILON);
        assert!(median(Vec::new()).is_nan());
    }
}
