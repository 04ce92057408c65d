//! Measures the cost of a scene: CPU of each program, requests by verb and resource, memory.

use std::collections::BTreeMap;

use anyhow::Context as _;

use super::side::Side;
use crate::process::{cpu_ticks, resident_mib};

/// Linux counts CPU time in this unit (`USER_HZ`), independent of the kernel's own tick.
const TICKS_A_SECOND: f64 = 100.0;

/// The bench's own process, which runs the clients, kubelets and agents.
pub const BENCH: &str = "bench";

#[derive(Debug, Clone, Default)]
pub struct Counts {
    pub cpu_s: BTreeMap<String, f64>,
    /// Requests that the API server has answered, by verb and resource.
    pub requests: BTreeMap<String, f64>,
}

impl Counts {
    /// Reads the counts at the beginning of a scene. It scrapes first, so that the CPU time of the scrape is
    /// not counted.
    pub async fn before(side: &mut Side) -> anyhow::Result<Self> {
        let requests = requests(&side.plane_mut().metrics("kube-apiserver").await?);
        Ok(Self { cpu_s: cpu(side)?, requests })
    }

    /// Reads the counts at the end of a scene. It scrapes last, for the same reason.
    pub async fn after(side: &mut Side) -> anyhow::Result<Self> {
        let cpu_s = cpu(side)?;
        let requests = requests(&side.plane_mut().metrics("kube-apiserver").await?);
        Ok(Self { cpu_s, requests })
    }

    /// The increase since `before`, divided by `pods`.
    pub fn since(&self, before: &Self, pods: usize) -> Self {
        Self {
            cpu_s: difference(&self.cpu_s, &before.cpu_s, pods),
            requests: difference(&self.requests, &before.requests, pods),
        }
    }
}

fn difference(
    now: &BTreeMap<String, f64>,
    before: &BTreeMap<String, f64>,
    pods: usize,
) -> BTreeMap<String, f64> {
    let pods = f64::from(u32::try_from(pods.max(1)).unwrap_or(u32::MAX));
    let since = |(name, now): (&String, &f64)| {
        let rise = now - before.get(name).copied().unwrap_or_default();
        (rise > 0.0).then(|| (name.clone(), rise / pods))
    };
    now.iter().filter_map(since).collect()
}

fn cpu(side: &mut Side) -> anyhow::Result<BTreeMap<String, f64>> {
    let programs = side.processes()?.into_iter().chain([(BENCH, std::process::id())]);
    let seconds = |(name, pid): (&str, u32)| {
        let ticks = u32::try_from(cpu_ticks(pid).with_context(|| format!("the CPU time of {name}"))?)?;
        Ok((name.to_owned(), f64::from(ticks) / TICKS_A_SECOND))
    };
    programs.map(seconds).collect()
}

/// Resident memory of each program, in MiB.
pub fn resident(side: &mut Side) -> anyhow::Result<BTreeMap<String, f64>> {
    let programs = side.processes()?.into_iter();
    programs.map(|(name, pid)| Ok((name.to_owned(), resident_mib(pid)?))).collect()
}

/// Sums `apiserver_request_total` from the text of `/metrics`, by verb, resource and, for errors, code.
fn requests(metrics: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let Some((labels, count)) = line.rsplit_once("} ") else { continue };
        let (Some(verb), Some(resource)) = (label(labels, "verb"), label(labels, "resource")) else {
            continue;
        };
        let Ok(count) = count.trim().parse::<f64>() else { continue };
        let mut name = format!("{verb} {resource}");
        if let Some(part) = label(labels, "subresource").filter(|part| !part.is_empty()) {
            name = format!("{name}/{part}");
        }
        if let Some(code) = label(labels, "code").filter(|code| code.starts_with(['4', '5'])) {
            name = format!("{name} {code}");
        }
        *sums.entry(name).or_insert(0.0) += count;
    }
    sums
}

fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let labels = labels.split_once('{')?.1;
    labels.split(',').find_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        (key == name).then(|| value.trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_summed_by_verb_resource_and_refusal() {
        let text = "# TYPE apiserver_request_total counter\n\
            apiserver_request_total{code=\"201\",resource=\"pods\",subresource=\"binding\",verb=\"POST\"} 3\n\
            apiserver_request_total{code=\"200\",resource=\"pods\",subresource=\"\",verb=\"POST\"} 1\n\
            apiserver_request_total{code=\"201\",resource=\"pods\",subresource=\"\",verb=\"POST\"} 4\n\
            apiserver_request_total{code=\"409\",resource=\"pods\",subresource=\"binding\",verb=\"POST\"} 2\n\
            apiserver_request_terminations_total{code=\"503\",resource=\"pods\",verb=\"POST\"} 9\n";
        let counted = requests(text);
        let counted: Vec<_> = counted.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(counted, [("POST pods", 5.0), ("POST pods/binding", 3.0), ("POST pods/binding 409", 2.0)]);
    }

    #[test]
    fn new_events_are_counted_for_each_pod() {
        let of = |pairs: &[(&str, f64)]| pairs.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect();
        let (before, now) = (of(&[("a", 1.0), ("b", 2.0)]), of(&[("a", 5.0), ("b", 2.0), ("c", 2.0)]));
        assert_eq!(difference(&now, &before, 4), of(&[("a", 1.0), ("c", 0.5)]));
    }
}
