//! The figures of a scene, their medians, and kerf's compared with the control's.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::side::Kind;
use crate::report::{Latency, print};

const WRITES: [&str; 4] = ["POST", "PUT", "PATCH", "APPLY"];
/// Requests that are rarer per pod are in the JSON only.
const SHOWN: f64 = 0.02;

#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    pub pods: usize,
    /// Pods that were not bound before the timeout.
    pub unbound: usize,
    /// Pods bound per second, from the start of the first creation to the last Binding.
    pub rate: f64,
    pub latency: Latency,
    /// CPU milliseconds per pod, by program.
    pub cpu_ms: BTreeMap<String, f64>,
    /// Requests per pod, by verb and resource.
    pub requests: BTreeMap<String, f64>,
    /// Resident memory of each program, in MiB.
    pub resident_mib: BTreeMap<String, f64>,
}

impl Measured {
    /// The median of each figure over the rounds of a scene; `None` without rounds.
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
            // The maximum is kept, because one unbound pod in any round must show.
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

    /// Writes of `GpuNodes` per pod, by any client.
    pub fn gpu_node_writes(&self) -> f64 {
        let is_write = |name: &str| {
            let (verb, resource) = name.split_once(' ').unwrap_or_default();
            WRITES.contains(&verb) && resource.starts_with("gpunodes")
        };
        let writes = self.requests.iter().filter(|(name, _)| is_write(name));
        writes.fold(0.0, |sum, (_, count)| sum + count)
    }

    pub fn line(&self) -> String {
        let unbound = if self.unbound > 0 { format!(", {} NOT BOUND", self.unbound) } else { String::new() };
        format!(
            "{:>6.1}/s  p50 {:>8.1} ms  p99 {:>8.1} ms  GpuNode writes a pod {:.2}  CPU ms a pod: {}{unbound}",
            self.rate,
            self.latency.p50_ms,
            self.latency.p99_ms,
            self.gpu_node_writes(),
            joined(&self.cpu_ms, 0.0, 1),
        )
    }
}

fn joined(figures: &BTreeMap<String, f64>, least: f64, digits: usize) -> String {
    let shown = figures.iter().filter(|(_, value)| **value >= least);
    shown.map(|(name, value)| format!("{name} {value:.digits$}")).collect::<Vec<_>>().join(", ")
}

/// The middle value, or the mean of the two middle ones.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    match (values.get(low), values.get(high)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => f64::NAN,
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub nodes: usize,
    pub scene: String,
    pub kerf: Measured,
    pub control: Measured,
    /// Bound pods per second: kerf's over the control's.
    pub rate_ratio: f64,
    /// Median time from created to bound: kerf's minus the control's, in milliseconds.
    pub p50_more_ms: f64,
    /// CPU time of the API server: kerf's over the control's.
    pub apiserver_ratio: f64,
}

impl Row {
    /// The medians of one scene's rounds; `None` if a cluster has none.
    pub fn from_rounds(nodes: usize, scene: &str, rounds: &[(Kind, Measured)]) -> Option<Self> {
        let of = |kind| {
            let rounds: Vec<_> = rounds.iter().filter(|(of, _)| *of == kind).map(|(_, one)| one).collect();
            Measured::median(&rounds)
        };
        let (kerf, control) = (of(Kind::Kerf)?, of(Kind::Control)?);
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

/// CPU milliseconds of the API server per pod.
fn apiserver(one: &Measured) -> f64 {
    one.cpu_ms.get("apiserver").copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_gpu_nodes_are_counted_apart_from_other_requests() {
        let counts = [("PATCH gpunodes/status", 0.5), ("PATCH gpunodes 409", 0.25), ("GET gpunodes", 4.0)];
        let counts = counts.into_iter().chain([("POST pods/binding", 1.0)]);
        let measured = Measured {
            pods: 1,
            unbound: 0,
            rate: 1.0,
            latency: Latency::from_samples(Vec::new()),
            cpu_ms: BTreeMap::new(),
            requests: counts.map(|(name, count)| (name.to_owned(), count)).collect(),
            resident_mib: BTreeMap::new(),
        };
        assert!((measured.gpu_node_writes() - 0.75).abs() < f64::EPSILON);
    }

    #[test]
    fn a_median_is_the_middle() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0]) - 2.5).abs() < f64::EPSILON);
        assert!(median(Vec::new()).is_nan());
    }
}
