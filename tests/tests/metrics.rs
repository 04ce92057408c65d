//! What the programs really tell is what docs/metrics.md says, and what alerts and dashboard ask for exists.

use anyhow::{Context as _, ensure};
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, root, wait};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// A metric: its type and its labels.
#[derive(Debug, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
    /// Whether it is told from the start.
    at_once: bool,
}

type Metrics = BTreeMap<String, Metric>;

/// The tables of docs/metrics.md.
fn documented() -> anyhow::Result<Metrics> {
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

/// What a text of `/metrics` tells, by the names that are asked for: a counter's has `_total`.
fn told(text: &str, into: &mut Metrics) {
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
    // One of which nothing has been told yet has no series, but its name stands there.
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

/// Where a program serves its metrics, by its log.
fn admin_address(log: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(log)?;
    let line = text.lines().rfind(|line| line.contains("/metrics")).context("no line about /metrics")?;
    let (_, rest) = line.split_once("127.0.0.1:").context("no address")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Ok(format!("127.0.0.1:{}", &rest[..end]))
}

async fn served(address: &str) -> anyhow::Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: kerf\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_programs_tell_what_the_documentation_says() -> anyhow::Result<()> {
    let mut options = ClusterOptions::new(vec![NodeSpec::new("h", Model::H100, 1)]);
    options.control_plane.controller_manager = false;
    let mut cluster = Cluster::start(options, |_| ()).await?;
    cluster.create(&pod("a", &[(keys::GPU_MEMORY, "10Gi")])).await?;
    cluster.running("a").await?;
    let logs = [cluster.webhook().log().to_owned(), cluster.extender().log().to_owned()];
    let logs = logs.into_iter().chain([cluster.nodes_mut()[0].agent().log().to_owned()]);
    let addresses = logs.map(|log| admin_address(&log)).collect::<anyhow::Result<Vec<_>>>()?;
    let documented = documented()?;
    let whole = async || {
        let mut all = Metrics::new();
        for address in &addresses {
            told(&served(address).await?, &mut all);
        }
        for (name, metric) in &documented {
            match all.remove(name) {
                Some(found) if found.at_once => {
                    ensure!(
                        (&found.kind, &found.labels) == (&metric.kind, &metric.labels),
                        "{name}: {found:?}"
                    );
                }
                Some(found) => {
                    ensure!(found.kind == metric.kind && !metric.at_once, "{name} has no series: {found:?}");
                }
                None => ensure!(!metric.at_once, "{name} is not told"),
            }
        }
        ensure!(all.is_empty(), "docs/metrics.md does not tell of {all:?}");
        Ok(true)
    };
    wait(PATIENCE, "each metric that is documented", whole).await?;
    cluster.stop().await
}

/// The queries of the alerts and of the dashboard, with where each stands.
fn queries() -> anyhow::Result<Vec<(String, String)>> {
    let folder = root().join("deploy/monitoring");
    let rules: Value = serde_saphyr::from_str(&std::fs::read_to_string(folder.join("rules.yaml"))?)?;
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("kerf.json"))?)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let alerts =
        list(&rules["spec"]["groups"][0]["rules"]).into_iter().map(|r| (text(&r["alert"]), text(&r["expr"])));
    let panels = list(&dashboard["panels"]).into_iter().flat_map(|panel| {
        let title = text(&panel["title"]);
        list(&panel["targets"]).into_iter().map(move |target| (title.clone(), text(&target["expr"])))
    });
    Ok(alerts.chain(panels).collect())
}

/// The names of metrics in a query, each with the labels that are selected by.
fn selected(query: &str) -> Vec<(String, BTreeSet<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for (start, _) in query.match_indices("kerf_") {
        if query[..start].ends_with(is_name) {
            continue;
        }
        let rest = &query[start..];
        let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
        let inside =
            rest[name.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(i, _)| i);
        let labels = inside.split(',').filter_map(|part| part.split(['=', '!']).next());
        let labels = labels.map(|label| label.trim().to_owned()).filter(|label| !label.is_empty());
        found.push((name.to_owned(), labels.collect()));
    }
    found
}

/// What `by (…)` groups by.
fn grouped(query: &str) -> BTreeSet<String> {
    let lists = query.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    lists.flat_map(|(list, _)| list.split(',').map(|label| label.trim().to_owned())).collect()
}

#[test]
fn alerts_and_dashboard_ask_for_metrics_that_exist() -> anyhow::Result<()> {
    /// Of the scrape, not of the metric.
    const OF_THE_TARGET: [&str; 3] = ["job", "node", "pod"];
    let documented = documented()?;
    let mut asked = BTreeSet::new();
    for (place, query) in queries()? {
        ensure!(!query.is_empty(), "{place} has no query");
        let selected = selected(&query);
        ensure!(!selected.is_empty() || query.contains("up{job=\"kerf-"), "{place}: {query}");
        let mut known: BTreeSet<&str> = OF_THE_TARGET.into();
        for (name, labels) in &selected {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let base =
                base.filter(|base| documented.get(*base).is_some_and(|metric| metric.kind == "histogram"));
            let base = base.unwrap_or(name);
            let metric = documented.get(base).with_context(|| format!("{place}: there is no {name}"))?;
            known.extend(metric.labels.iter().map(String::as_str));
            known.extend(name.ends_with("_bucket").then_some("le"));
            for label in labels {
                ensure!(metric.labels.contains(label), "{place}: {name} has no label {label}");
            }
            asked.insert(base.to_owned());
        }
        for label in grouped(&query) {
            ensure!(known.contains(label.as_str()), "{place}: nothing in {query} has the label {label}");
        }
        let open = |c: char| query.matches(c).count();
        ensure!(open('(') == open(')') && open('{') == open('}'), "{place}: {query}");
    }
    let untold: Vec<&String> = documented.keys().filter(|name| !asked.contains(*name)).collect();
    assert_eq!(untold, Vec::<&String>::new(), "a metric that neither an alert nor a panel shows");
    Ok(())
}

/// Each alert is told of in the documentation, and names what to do.
#[test]
fn alerts_are_documented_and_name_a_remedy() -> anyhow::Result<()> {
    let documentation = std::fs::read_to_string(root().join("docs/metrics.md"))?;
    let text = std::fs::read_to_string(root().join("deploy/monitoring/rules.yaml"))?;
    let rules: Value = serde_saphyr::from_str(&text)?;
    let alerts = rules["spec"]["groups"][0]["rules"].as_array().context("rules")?;
    for alert in alerts {
        let name = alert["alert"].as_str().context("a name")?;
        ensure!(documentation.contains(&format!("| `{name}` |")), "{name} is not in docs/metrics.md");
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        ensure!(["critical", "warning", "info"].contains(&severity), "{name}: {severity:?}");
        for text in ["summary", "description"] {
            ensure!(
                alert["annotations"][text].as_str().is_some_and(|text| text.len() > 20),
                "{name} has no {text}"
            );
        }
    }
    assert_eq!(alerts.len(), documentation.matches("| `Kerf").count());
    Ok(())
}

/// The dashboard's panels lie beside each other, and each has a title.
#[test]
fn the_dashboards_panels_do_not_lie_on_each_other() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root().join("deploy/monitoring/kerf.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().context("panels")? {
        ensure!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        let at = |key: &str| panel["gridPos"][key].as_u64().context("a place");
        let (x, y, w, h) = (at("x")?, at("y")?, at("w")?, at("h")?);
        ensure!(x + w <= 24, "{} is too wide", panel["title"]);
        for cell in (y..y + h).flat_map(|row| (x..x + w).map(move |column| (row, column))) {
            ensure!(taken.insert(cell), "{} lies on another", panel["title"]);
        }
    }
    Ok(())
}
