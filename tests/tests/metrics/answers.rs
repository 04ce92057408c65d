//! The answers of a real Prometheus, on kerf's programs with simulated GPUs.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use kerf_nvml_mock::{Fault, MockControl, NvmlCode};
use kerf_tests::cluster::{Cluster, sized_pod, wait};
use kerf_tests::monitoring::{Buckets, Dashboard, Load, Prometheus, Scraped, scraped};
use serde_json::json;

use crate::metrics::alerts::alerts;
use crate::metrics::documented::{Metrics, compare, documented, reported};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Panels whose first query has no answer on a healthy cluster, and why. [`trouble`] gives each of them an answer.
const OF_TROUBLE: [(&str, &str); 4] = [
    ("Conditions that do not hold", "they all hold"),
    ("Nodes not served", "every node is served"),
    ("Nodes by the layout of NVIDIA's device plugin", "no node has a layout"),
    ("Errors by NVML's code, and rejected pods", "no call has failed"),
];

/// A layout for nodes that NVIDIA's device plugin serves. Before there is trouble there is no such node.
const LAYOUT: &str = "
---
apiVersion: kerf.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: in-two}
spec:
  match: {labels: {kerf.dev/layout: in-two}}
  plugin: {timeSlicing: {replicas: 2}}
";

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_answers_every_query_of_the_dashboard() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let options = Load::cluster(folder.path())?;
    let policy = options.policy.as_ref().context("the load has a policy")?;
    let policies = std::fs::read_to_string(policy)?;
    std::fs::write(policy, policies + LAYOUT)?;
    let mut cluster = Cluster::start(options, |_| ()).await?;
    let targets = scraped(&mut cluster)?;
    // Prometheus starts before the pods, because a rate needs a value from before the first event.
    let [classic, native] = [("classic", Buckets::Classic), ("native", Buckets::Native)];
    let classic = Prometheus::start(&folder.path().join(classic.0), &targets, classic.1).await?;
    let native = Prometheus::start(&folder.path().join(native.0), &targets, native.1).await?;
    let load = Load::default();
    load.create(&cluster).await?;
    load.run_processes(&cluster, 40).await?;
    the_programs_export_the_documented_metrics(&targets).await?;
    for prometheus in [&classic, &native] {
        let answered = async || is_answered(prometheus, State::Healthy).await;
        wait(TIMEOUT, "each query to be answered", answered).await?;
        nothing_fires(prometheus).await?;
    }
    both_kinds_of_buckets_agree(&classic, &native).await?;
    labels_are_those_of_the_pods_and_nodes(&native).await?;
    trouble(&cluster).await?;
    for prometheus in [&classic, &native] {
        let answered = async || is_answered(prometheus, State::InTrouble).await;
        wait(TIMEOUT, "the queries about trouble to be answered", answered).await?;
    }
    classic.stop()?;
    native.stop()?;
    cluster.stop().await
}

async fn the_programs_export_the_documented_metrics(targets: &[Scraped]) -> anyhow::Result<()> {
    let documented = documented()?;
    let whole = async || {
        let mut all = Metrics::new();
        for target in targets {
            reported(&target.metrics().await?, &mut all);
        }
        compare(&documented, all)?;
        Ok(true)
    };
    wait(TIMEOUT, "each metric that is documented", whole).await
}

/// The state of the cluster when Prometheus is queried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Healthy,
    InTrouble,
}

/// Causes trouble: a managed node without an agent, a node whose layout cannot be applied because it names no GPUs, a
/// lost GPU, which makes a condition of its GpuNode false, and a GPU on which no instance can be created.
async fn trouble(cluster: &Cluster) -> anyhow::Result<()> {
    let labels = [
        ("no-agent", json!({"kerf.dev/managed": "true"})),
        ("layout", json!({"kerf.dev/layout": "in-two", "nvidia.com/gpu.present": "true"})),
    ];
    for (name, labels) in labels {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}});
        cluster.plane().apply(&node.to_string()).await?;
    }
    let [h100, t4] = cluster.nodes() else { bail!("not the cluster of this load") };
    t4.control(&MockControl::new().fault(Fault::gpu_lost(0)))?;
    let full = Fault::new("nvmlDeviceCreateGpuInstanceWithPlacement", NvmlCode::INSUFFICIENT_RESOURCES);
    h100.control(&MockControl::new().fault(full))?;
    cluster.create(&sized_pod("refused", "10Gi", "hardware")).await?;
    Ok(())
}

/// Whether each query has a number for an answer. On a healthy cluster those about trouble are excepted. In trouble
/// only those are queried, because a lost GPU removes its own series.
async fn is_answered(prometheus: &Prometheus, state: State) -> anyhow::Result<bool> {
    let dashboard = Dashboard::read()?;
    for panel in dashboard.asking() {
        let is_of_trouble = OF_TROUBLE.iter().any(|(title, _)| *title == panel.title);
        if state == State::InTrouble && !is_of_trouble {
            continue;
        }
        for (number, target) in panel.targets.iter().enumerate() {
            let answer = prometheus.query(&dashboard.for_all(&target.expr)).await?;
            let has_number = answer.iter().any(|series| !series.values.is_empty());
            let may_be_empty = state == State::Healthy && is_of_trouble && number == 0;
            if !has_number && !may_be_empty {
                bail!("{}: {} has no answer", panel.title, target.expr);
            }
        }
    }
    Ok(true)
}

/// Each panel about trouble is one of the dashboard's.
#[test]
fn panels_about_trouble_exist() -> anyhow::Result<()> {
    let dashboard = Dashboard::read()?;
    for (title, why) in OF_TROUBLE {
        ensure!(dashboard.asking().any(|panel| panel.title == title), "there is no panel {title} ({why})");
    }
    Ok(())
}

/// On a healthy cluster no alert fires. Those that compare a number with a limit could do so by mistake.
async fn nothing_fires(prometheus: &Prometheus) -> anyhow::Result<()> {
    for alert in alerts()? {
        let expr = alert["expr"].as_str().context("expr")?;
        let answer = prometheus.query(expr).await?;
        ensure!(answer.is_empty(), "{}: {answer:?}", alert["alert"]);
    }
    Ok(())
}

/// The scraped pod's own namespace and name do not replace those in kerf's labels, nor appear where kerf sets none.
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

/// Both count the same pods, and their medians agree to within a classic bucket, whose upper bound is twice its lower.
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
