//! The alerts: promtool accepts the rules, and each fires on the series that should fire it and on no others.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, ensure};
use kerf_tests::binaries;
use kerf_tests::chart::{by_name, template_with};
use kerf_tests::cluster::root;
use kerf_tests::docs::pages;
use serde_json::{Map, Value, json};

/// The alerts of the `PrometheusRule`.
pub fn alerts() -> anyhow::Result<Vec<Value>> {
    let rules = shipped()?;
    let groups = rules["groups"].as_array().context("groups")?.iter();
    let all = groups.map(|group| group["rules"].as_array().cloned().context("rules"));
    Ok(all.collect::<anyhow::Result<Vec<_>>>()?.concat())
}

/// The rules as Prometheus reads them: the spec of the `PrometheusRule`.
fn shipped() -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(root().join("deploy/monitoring/rules.yaml"))?;
    let rule: Value = serde_saphyr::from_str(&text)?;
    Ok(rule["spec"].clone())
}

/// The chart's rules with these values of `monitoring.rules`.
fn by_chart(values: &Value) -> anyhow::Result<Value> {
    let mut rules = values.clone();
    rules["enabled"] = json!(true);
    let made = by_name(&template_with("kerf-system", &json!({"monitoring": {"rules": rules}}))?)?;
    let rules = made.get("monitoring.coreos.com/v1 PrometheusRule kerf").context("the chart has no rules")?;
    Ok(rules["spec"].clone())
}

fn name(alert: &Value) -> &str {
    alert["alert"].as_str().unwrap_or_default()
}

#[test]
fn promtool_accepts_the_rules_and_each_alert_fires_when_it_should() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let (rules, tests) = (folder.path().join("rules.yaml"), folder.path().join("tests.yaml"));
    // promtool reads it, because JSON is YAML.
    std::fs::write(&rules, shipped()?.to_string())?;
    std::fs::write(&tests, with_texts(serde_saphyr::from_str(include_str!("alerts.yaml"))?)?.to_string())?;
    for arguments in [["check", "rules"], ["test", "rules"]] {
        let file = if arguments[0] == "check" { &rules } else { &tests };
        let output =
            Command::new(binaries::monitoring_tool("promtool")?).args(arguments).arg(file).output()?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "promtool {arguments:?}: {}", String::from_utf8_lossy(&said));
    }
    Ok(())
}

/// The tests, with those annotations added that have no template, so that only the rules contain their texts.
fn with_texts(mut tests: Value) -> anyhow::Result<Value> {
    let alerts = alerts()?;
    for test in tests["tests"].as_array_mut().context("tests")? {
        for case in test["alert_rule_test"].as_array_mut().context("alert_rule_test")? {
            let of = case["alertname"].clone();
            let alert = alerts.iter().find(|alert| alert["alert"] == of);
            let shipped = alert.with_context(|| format!("no alert {of}"))?["annotations"].clone();
            for expected in case["exp_alerts"].as_array_mut().context("exp_alerts")? {
                let mut all = plain(&shipped);
                all.extend(expected["exp_annotations"].as_object().cloned().unwrap_or_default());
                expected["exp_annotations"] = json!(all);
            }
        }
    }
    Ok(tests)
}

fn plain(texts: &Value) -> Map<String, Value> {
    let texts = texts.as_object().cloned().unwrap_or_default();
    texts.into_iter().filter(|(_, text)| text.as_str().is_some_and(|text| !text.contains("{{"))).collect()
}

/// The chart's values change only what they name.
#[test]
fn the_charts_rules_differ_only_in_the_address_and_the_limit() -> anyhow::Result<()> {
    const PAGE: &str = "https://git.example.com/kerf/docs/runbooks.md";
    let (shipped, folder) = (shipped()?, tempfile::tempdir()?);
    ensure!(by_chart(&json!({}))? == shipped, "the chart's rules are not those of deploy/monitoring");
    let changed = by_chart(&json!({"runbookUrl": PAGE, "pendingSeconds": 90_000}))?;
    let text = changed.to_string().replace("> 90000", "> 14400");
    let text = text.replace(&format!("{PAGE}#"), "docs/runbooks.md#");
    ensure!(serde_json::from_str::<Value>(&text)? == shipped, "another rule changed");
    let texts = changed.to_string();
    assert_eq!(texts.matches("> 90000").count(), 1);
    assert_eq!(texts.matches(&format!("{PAGE}#kerf")).count(), alerts()?.len());
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, texts)?;
    let promtool = binaries::monitoring_tool("promtool")?;
    let output = Command::new(promtool).args(["check", "rules"]).arg(&rules).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A text with a number must be right for 1 and for 2, so the number follows a colon, or has a unit.
#[test]
fn texts_with_a_number_are_right_for_any_number() -> anyhow::Result<()> {
    for alert in alerts()? {
        for text in ["summary", "description"].map(|text| alert["annotations"][text].clone()) {
            let text = text.as_str().unwrap_or_default();
            let rest = text.replace("{{ $value | humanizeDuration }}", "");
            let rest = rest.strip_suffix(": {{ $value }}").unwrap_or(&rest);
            ensure!(!rest.contains("$value"), "{}: {text}", name(&alert));
        }
    }
    Ok(())
}

/// A test without firing is worth nothing without another in which the alert fires.
#[test]
fn each_alert_has_series_that_fire_it_and_series_that_do_not() -> anyhow::Result<()> {
    let tests: Value = serde_saphyr::from_str(include_str!("alerts.yaml"))?;
    let (mut fires, mut does_not) = (BTreeSet::new(), BTreeSet::new());
    for test in tests["tests"].as_array().context("tests")? {
        for case in test["alert_rule_test"].as_array().context("alert_rule_test")? {
            let name = case["alertname"].as_str().context("alertname")?.to_owned();
            let is_quiet = case["exp_alerts"].as_array().is_none_or(Vec::is_empty);
            if is_quiet { &mut does_not } else { &mut fires }.insert(name);
        }
    }
    let all: BTreeSet<String> = alerts()?.iter().map(|alert| name(alert).to_owned()).collect();
    assert_eq!(fires, all);
    assert_eq!(does_not, all);
    Ok(())
}

/// Each alert is in the documentation, names what to do, and leads to a runbook with the same four parts.
#[test]
fn each_alert_is_documented_and_links_to_its_runbook() -> anyhow::Result<()> {
    const RUNBOOKS: &str = "docs/runbooks.md";
    const PARTS: [&str; 4] = ["**Meaning.**", "**Impact.**", "**Diagnosis.**", "**Mitigation.**"];
    let documentation = std::fs::read_to_string(root().join("docs/metrics.md"))?;
    let runbooks = std::fs::read_to_string(root().join(RUNBOOKS))?;
    let pages = pages(&root())?;
    let page = pages.iter().find(|page| page.path.ends_with(RUNBOOKS)).context("no page of runbooks")?;
    let alerts = alerts()?;
    for alert in &alerts {
        let name = name(alert);
        ensure!(documentation.contains(&format!("| `{name}` |")), "{name} is not in docs/metrics.md");
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        ensure!(["critical", "warning", "info"].contains(&severity), "{name}: {severity:?}");
        for text in ["summary", "description"] {
            let text = alert["annotations"][text].as_str().unwrap_or_default();
            ensure!(text.len() > 20, "{name} has no {text}");
        }
        let url = alert["annotations"]["runbook_url"].as_str().unwrap_or_default();
        let anchor = url.strip_prefix("docs/runbooks.md#").with_context(|| format!("{name}: {url}"))?;
        ensure!(
            anchor == name.to_lowercase() && page.anchors.contains(anchor),
            "{name}: {url} leads nowhere"
        );
        let (_, section) = runbooks.split_once(&format!("\n## {name}\n")).context("no section")?;
        let section = section.split("\n## ").next().unwrap_or_default();
        let places: Vec<_> = PARTS.iter().map(|part| section.find(part)).collect();
        ensure!(places.iter().all(Option::is_some) && places.is_sorted(), "{name}: {places:?}");
    }
    assert_eq!(alerts.len(), documentation.matches("| `Kerf").count());
    assert_eq!(alerts.len(), runbooks.matches("\n## Kerf").count());
    Ok(())
}
