//! The dashboard's structure: Grafana accepts it, and its queries use existing metrics.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use kerf_tests::monitoring::Dashboard;

use crate::metrics::alerts::alerts;
use crate::metrics::documented::{Metrics, documented};

/// Labels of the scrape, not of the metric.
const OF_THE_TARGET: [&str; 3] = ["job", "node", "pod"];

/// The queries of the alerts and of the dashboard, each with its place.
fn queries() -> anyhow::Result<Vec<(String, String)>> {
    let dashboard = Dashboard::read()?;
    let panels = dashboard.panels.iter().flat_map(|panel| {
        panel.targets.iter().map(|target| (panel.title.clone(), dashboard.for_all(&target.expr)))
    });
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let alerts = alerts()?.into_iter().map(|alert| (text(&alert["alert"]), text(&alert["expr"])));
    Ok(alerts.chain(panels).collect())
}

/// The names of metrics in a query, each with the labels that it selects by.
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

/// The labels that `by (…)` and `on (…)` name.
fn grouped(query: &str) -> BTreeSet<String> {
    let lists = ["by (", "on ("].into_iter().flat_map(|word| query.split(word).skip(1));
    let lists = lists.filter_map(|rest| rest.split_once(')'));
    lists.flat_map(|(list, _)| list.split(',').map(|label| label.trim().to_owned())).collect()
}

/// The documented name of a metric in a query. A histogram's suffix is removed.
fn base<'q>(name: &'q str, documented: &Metrics) -> &'q str {
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    base.filter(|base| documented.get(*base).is_some_and(|metric| metric.kind == "histogram")).unwrap_or(name)
}

#[test]
fn alerts_and_dashboard_query_existing_metrics() -> anyhow::Result<()> {
    let documented = documented()?;
    let mut asked = BTreeSet::new();
    for (place, query) in queries()? {
        ensure!(!query.is_empty(), "{place} has no query");
        let selected = selected(&query);
        ensure!(!selected.is_empty() || query.contains("up{job=\"kerf-"), "{place}: {query}");
        let mut known: BTreeSet<&str> = OF_THE_TARGET.into();
        for (name, labels) in &selected {
            let base = base(name, &documented);
            let metric = documented.get(base).with_context(|| format!("{place}: there is no {name}"))?;
            known.extend(metric.labels.iter().map(String::as_str));
            known.extend(name.ends_with("_bucket").then_some("le"));
            for label in labels {
                let is_there = metric.labels.contains(label) || OF_THE_TARGET.contains(&label.as_str());
                ensure!(is_there, "{place}: {name} has no label {label}");
            }
            asked.insert(base.to_owned());
        }
        for label in grouped(&query) {
            ensure!(known.contains(label.as_str()), "{place}: nothing in {query} has the label {label}");
        }
    }
    let unshown: Vec<&String> = documented.keys().filter(|name| !asked.contains(*name)).collect();
    assert_eq!(unshown, Vec::<&String>::new(), "a metric that neither an alert nor a panel shows");
    Ok(())
}

/// The rules by which Grafana lays out and queries panels. They are written by hand, because no registry has a JSON
/// Schema of Grafana's classic dashboards (`schemaVersion` 39). npm's `@grafana/schema` 13.2.3 has types of
/// `TypeScript`, and the Go module `grafana-foundation-sdk` v0.0.22 has builders. Both are made from CUE in Grafana's
/// repository (`kinds/dashboard/dashboard_kind.cue`), which nothing here can read.
#[test]
fn each_panel_has_its_own_place_number_and_data_source() -> anyhow::Result<()> {
    const SOURCE: &str = "${datasource}";
    let dashboard = Dashboard::read()?;
    let (mut taken, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for panel in &dashboard.panels {
        let title = &panel.title;
        ensure!(!title.is_empty() && numbers.insert(panel.id), "{title} has the number {}", panel.id);
        ensure!(
            ["row", "stat", "timeseries", "table"].contains(&panel.kind.as_str()),
            "{title}: {}",
            panel.kind
        );
        let place = panel.grid_pos;
        ensure!(place.x + place.w <= 24, "{title} is too wide");
        for row in place.y..place.y + place.h {
            for column in place.x..place.x + place.w {
                ensure!(taken.insert((row, column)), "{title} lies on another");
            }
        }
        if panel.kind == "row" {
            continue;
        }
        let mut names = BTreeSet::new();
        ensure!(!panel.targets.is_empty(), "{title} asks nothing");
        let sources = panel.targets.iter().map(|target| &target.datasource).chain([&panel.datasource]);
        for source in sources {
            ensure!(source.as_ref().is_some_and(|source| source.uid == SOURCE), "{title} asks {source:?}");
        }
        ensure!(panel.targets.iter().all(|target| names.insert(&target.ref_id)), "{title}: {names:?}");
    }
    Ok(())
}

/// Each variable is used, no used variable is missing, and each offers the values of an existing label.
#[test]
fn variables_are_used_and_have_values() -> anyhow::Result<()> {
    let dashboard = Dashboard::read()?;
    let documented = documented()?;
    let queries = dashboard.panels.iter().flat_map(|panel| &panel.targets);
    let used: BTreeSet<&str> = queries.flat_map(|target| target.variables()).collect();
    let chosen = dashboard.templating.list.iter().filter(|variable| variable.kind == "query");
    let mut offered = BTreeSet::new();
    for variable in chosen {
        offered.insert(variable.name.as_str());
        ensure!(variable.datasource.as_ref().is_some_and(|source| source.uid == "${datasource}"));
        let definition = variable.definition.as_deref().unwrap_or_default();
        let inside = definition.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) =
            inside.and_then(|inside| inside.rsplit_once(", ")).context("no definition")?;
        let (name, _) = selector.split_once('{').unwrap_or((selector, ""));
        let metric = documented.get(name).with_context(|| format!("there is no {name}"))?;
        ensure!(metric.labels.contains(label) || OF_THE_TARGET.contains(&label), "{name} has no {label}");
    }
    assert_eq!(used, offered);
    assert_eq!(offered, ["model", "namespace", "node", "policy"].into());
    Ok(())
}
