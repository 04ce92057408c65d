//! What a real Prometheus answers, on kerf's programs with simulated GPUs.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kerf_tests::cluster::{Cluster, wait};
use kerf_tests::monitoring::{Buckets, Dashboard, Load, Prometheus, Scraped, scraped};

use crate::metrics::alerts::alerts;
use crate::metrics::documented::{Metrics, compare, documented, told};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Queries that a healthy cluster answers with nothing, by their panels, and why.
const UNANSWERED: [(&str, &str); 4] = [
    ("Conditions that do not hold", "they all hold"),
    ("Nodes not served", "every node is served"),
    ("Nodes by the layout of NVIDIA's device plugin", "no node has a layout"),
    ("Errors by NVML's code, and rejected pods", "the first of its queries: no call has failed"),
];

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_answers_every_query_of_the_dashboard() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut cluster = Cluster::start(Load::cluster(folder.path())?, |_| ()).await?;
    let targets = scraped(&mut cluster)?;
    // Before the pods: a rate needs a value before the first.
    let [classic, native] = [("classic", Buckets::Classic), ("native", Buckets::Native)];
    let classic = Prometheus::start(&folder.path().join(classic.0), &targets, classic.1).await?;
    let native = Prometheus::start(&folder.path().join(native.0), &targets, native.1).await?;
    let load = Load::default();
    load.create(&cluster).await?;
    load.run_processes(&cluster, 40).await?;
    the_programs_tell_what_the_documentation_says(&targets).await?;
    for prometheus in [&classic, &native] {
        wait(TIMEOUT, "each query to be answered", async || every_query_is_answered(prometheus).await)
            .await?;
        nothing_fires(prometheus).await?;
    }
    both_kinds_of_buckets_agree(&classic, &native).await?;
    labels_are_those_of_the_pods_and_nodes(&native).await?;
    classic.stop()?;
    native.stop()?;
    cluster.stop().await
}

async fn the_programs_tell_what_the_documentation_says(targets: &[Scraped]) -> anyhow::Result<()> {
    let documented = documented()?;
    let whole = async || {
        let mut all = Metrics::new();
        for target in targets {
            told(&target.metrics().await?, &mut all);
        }
        compare(&documented, all)?;
        Ok(true)
    };
    wait(TIMEOUT, "each metric that is documented", whole).await
}

/// Each query of the dashboard has a number for an answer, but for those that are excused.
async fn every_query_is_answered(prometheus: &Prometheus) -> anyhow::Result<bool> {
    let dashboard = Dashboard::read()?;
    for panel in dashboard.asking() {
        let excuse = UNANSWERED.iter().find(|(title, _)| *title == panel.title);
        for (number, target) in panel.targets.iter().enumerate() {
            let answer = prometheus.query(&dashboard.for_all(&target.expr)).await?;
            let is_answered = answer.iter().any(|series| !series.values.is_empty());
            if !is_answered && (excuse.is_none() || number > 0) {
                bail!("{}: {} has no answer", panel.title, target.expr);
            }
        }
    }
    Ok(true)
}

/// On a healthy cluster no alert has anything to say. Those that compare a number with a limit could do so wrongly.
async fn nothing_fires(prometheus: &Prometheus) -> anyhow::Result<()> {
    for alert in alerts()? {
        let expr = alert["expr"].as_str().context("expr")?;
        let answer = prometheus.query(expr).await?;
        ensure!(answer.is_empty(), "{}: {answer:?}", alert["alert"]);
    }
    Ok(())
}

/// The scraped pod's own namespace and name do not stand in the place of those that kerf tells, nor where it tells none.
async fn labels_are_those_of_the_pods_and_nodes(prometheus: &Prometheus) -> anyhow::Result<()> {
    for (expr, series) in [
        (r#"kerf_agent_slice_memory_bytes{namespace="default", pod="detector-a", node="h"}"#, 1),
        (r#"kerf_agent_condition{condition="Ready", status="True", node=~"h|t"}"#, 2),
        (r#"kerf_extender_quota_used{policy="team", namespace="default"}"#, 2),
        (r#"kerf_extender_quota_used{policy="others", namespace=""}"#, 1),
        ("kerf_extender_quota_used{policy=\"others\"}", 1),
    ] {
        let answer = prometheus.query(expr).await?;
        ensure!(answer.len() == series, "{expr}: {answer:?}");
    }
    Ok(())
}

/// Both count the same pods, and what they say of the median is within a classic bucket, which is twice as wide as it is low.
async fn both_kinds_of_buckets_agree(classic: &Prometheus, native: &Prometheus) -> anyhow::Result<()> {
    const METRIC: &str = "kerf_extender_created_to_bound_seconds";
    let one = async |prometheus: &Prometheus, expr: String| {
        let answer = prometheus.query(&expr).await?;
        let value = answer.first().and_then(|series| series.values.first());
        value.map(|(_, value)| *value).with_context(|| format!("{expr} has no answer"))
    };
    let counted = one(classic, format!("sum({METRIC}_count)")).await?;
    ensure!(counted >= 3.0, "{counted} pods were bound");
    let counted_natively = one(native, format!("histogram_count(sum({METRIC}))")).await?;
    ensure!((counted - counted_natively).abs() < 0.5, "{counted} and {counted_natively}");
    let median = one(classic, format!("histogram_quantile(0.5, sum by (le) ({METRIC}_bucket))")).await?;
    let native_median = one(native, format!("histogram_quantile(0.5, sum({METRIC}))")).await?;
    ensure!((0.5..=2.0).contains(&(native_median / median)), "{median} s and {native_median} s");
    let buckets = native.query(&format!("{METRIC}_bucket")).await?;
    ensure!(buckets.is_empty(), "native buckets were asked for, and classic ones were scraped");
    Ok(())
}
