//! Compares docs/metrics.md with what the programs expose.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use kerf_tests::cluster::root;

/// A metric: its type and its labels.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    pub kind: String,
    pub labels: BTreeSet<String>,
    /// Whether it has series from the start.
    pub at_once: bool,
}

pub type Metrics = BTreeMap<String, Metric>;

/// The metrics in the tables of docs/metrics.md.
pub fn documented() -> anyhow::Result<Metrics> {
    let text = std::fs::read_to_string(root().join("docs/metrics.md"))?;
    let rows = text.lines().filter(|line| line.starts_with("| `kerf_"));
    let rows = rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, what] = cells[..] else { anyhow::bail!("{line} has no four cells") };
        let labels = labels.split(',').map(|label| label.trim().to_owned()).filter(|label| !label.is_empty());
        let at_once = !what.ends_with("Later");
        Ok((
            name.trim_matches('`').to_owned(),
            Metric { kind: kind.to_owned(), labels: labels.collect(), at_once },
        ))
    });
    rows.collect()
}

/// Adds the metrics of a `/metrics` text, by the names that queries use: a counter's has `_total`.
pub fn reported(text: &str, into: &mut Metrics) {
    let mut kinds = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (name, kind) = match kind {
                "counter" => (format!("{name}_total"), "counter"),
                "info" => (format!("{name}_info"), "gauge"),
                other => (name.to_owned(), other),
            };
            kinds.insert(name, kind.to_owned());
        }
    }
    // A metric without events so far has no series, but its name and type are in the text.
    for (name, kind) in &kinds {
        into.entry(name.clone()).or_insert_with(|| Metric {
            kind: kind.clone(),
            labels: BTreeSet::new(),
            at_once: false,
        });
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, labels)) = line.split_once('{').or_else(|| line.split_once(' ')) else { continue };
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix));
        let name = base.filter(|base| kinds.contains_key(*base)).unwrap_or(series);
        let Some(metric) = into.get_mut(name) else { continue };
        metric.at_once = true;
        let named = labels.split_once('}').map_or("", |(labels, _)| labels);
        let named =
            named.split("\",").filter_map(|label| label.split_once('=')).map(|(label, _)| label.to_owned());
        metric.labels.extend(named.filter(|label| label != "le"));
    }
}

/// Fails if the documentation and the programs differ.
pub fn compare(documented: &Metrics, mut reported: Metrics) -> anyhow::Result<()> {
    for (name, metric) in documented {
        match reported.remove(name) {
            Some(found) if found.at_once => {
                ensure!((&found.kind, &found.labels) == (&metric.kind, &metric.labels), "{name}: {found:?}");
            }
            Some(found) => {
                ensure!(found.kind == metric.kind && !metric.at_once, "{name} has no series: {found:?}");
            }
            None => ensure!(!metric.at_once, "{name} is not exported"),
        }
    }
    ensure!(reported.is_empty(), "docs/metrics.md does not list {reported:?}");
    Ok(())
}
