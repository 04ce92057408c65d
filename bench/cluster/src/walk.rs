//! Measures a pod's time from created to bound.
//!
//! A pod's time runs from the API server's answer to its POST until a watch shows `spec.nodeName`. The time
//! from sending the POST, which includes admission, is printed beside it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args as ClapArgs;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, sized_pod, wait};
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::bound::Bound;
use crate::report::{Figure, Latency, print, print_figures};

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Pods measured one at a time, first on new and then on idle slices; at most 56.
    #[arg(long, default_value_t = 50)]
    single: usize,
    /// Pods of the burst.
    #[arg(long, default_value_t = 200)]
    burst: u32,
    /// Nodes of eight H100 for the burst.
    #[arg(long, default_value_t = 25)]
    nodes: usize,
    /// Also write the JSON, which is printed last, to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let mut figures = Vec::new();
    let mut latencies = BTreeMap::new();
    if args.single > 0 {
        single(args.single, &mut figures, &mut latencies).await?;
    }
    if args.burst > 0 {
        burst(args, &mut figures, &mut latencies).await?;
    }
    for (name, l) in &latencies {
        print(&format!(
            "{name:<44} n {:>4}   p50 {:>8.1} ms   p99 {:>8.1} ms   max {:>8.1} ms",
            l.count, l.p50_ms, l.p99_ms, l.max_ms
        ));
    }
    print_figures(&figures);
    let json = serde_json::json!({"latencies": latencies, "figures": figures}).to_string();
    print(&json);
    if let Some(path) = &args.json {
        std::fs::write(path, json).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

async fn single(
    count: usize,
    figures: &mut Vec<Figure>,
    latencies: &mut BTreeMap<String, Latency>,
) -> anyhow::Result<()> {
    let cluster = start(vec![NodeSpec::new("n0", Model::H100, 8)]).await?;
    let mut bound = Bound::watch(cluster.pods(), |_| ());
    for (case, bar) in [("new slice", 100.0), ("idle slice", 40.0)] {
        let (mut created, mut sent) = (Vec::new(), Vec::new());
        for n in 0..count {
            let name = format!("{}-{n}", case.replace(' ', "-"));
            let begun = Instant::now();
            cluster.pods().create(&PostParams::default(), &detector(&name)).await?;
            let answered = Instant::now();
            let at = bound.bound_at(&name).await?;
            created.push(at.saturating_duration_since(answered));
            sent.push(at - begun);
            // The pod's reports and Events settle before the next pod comes, so that pods do not overlap.
            settled(&cluster, &name).await?;
        }
        empty(&cluster).await?;
        let created = Latency::from_samples(created);
        figures.push(Figure::at_most(
            &format!("one pod at a time, {case}: created to bound, p50 ms"),
            created.p50_ms,
            bar,
        ));
        latencies.insert(format!("{case}: created to bound"), created);
        latencies.insert(format!("{case}: POST sent to bound"), Latency::from_samples(sent));
    }
    cluster.stop().await
}

async fn burst(
    args: &Args,
    figures: &mut Vec<Figure>,
    latencies: &mut BTreeMap<String, Latency>,
) -> anyhow::Result<()> {
    let nodes = (0..args.nodes).map(|n| NodeSpec::new(&format!("n{n}"), Model::H100, 8)).collect();
    let cluster = start(nodes).await?;
    let mut bound = Bound::watch(cluster.pods(), |_| ());
    let begun = Instant::now();
    let pods = cluster.pods();
    let created = futures::stream::iter(0..args.burst).map(|n| {
        let pods = pods.clone();
        async move {
            let name = format!("burst-{n}");
            pods.create(&PostParams::default(), &detector(&name)).await?;
            anyhow::Ok((name, Instant::now()))
        }
    });
    let created: Vec<(String, Instant)> = created.buffer_unordered(16).try_collect().await?;
    let mut waits = Vec::new();
    let mut last = begun;
    for (name, answered) in &created {
        let at = bound.bound_at(name).await?;
        last = last.max(at);
        waits.push(at.saturating_duration_since(*answered));
    }
    let rate = f64::from(args.burst) / (last - begun).as_secs_f64();
    let latency = Latency::from_samples(waits);
    figures.push(Figure::at_least("burst: pods bound per second", rate, 60.0));
    figures.push(Figure::at_most("burst: created to bound, p99 ms", latency.p99_ms, 4000.0));
    latencies.insert("burst: created to bound".to_owned(), latency);
    cluster.stop().await
}

async fn start(nodes: Vec<NodeSpec>) -> anyhow::Result<Cluster> {
    let mut options = ClusterOptions::new(nodes);
    // The API server's queues would dominate the measurement.
    options.control_plane.priority_and_fairness = false;
    Cluster::start(options, |step| print(&format!("# {step}"))).await
}

fn detector(name: &str) -> Pod {
    sized_pod(name, "10Gi", "hardware")
}

/// Waits until the agent has reported the pod as the holder of its slice.
async fn settled(cluster: &Cluster, pod: &str) -> anyhow::Result<()> {
    let held = async || {
        let status = cluster.gpu_node("n0").await?.read_status()?.unwrap_or_default();
        Ok(status.slices.iter().any(|s| s.holder.as_ref().is_some_and(|h| h.pod == pod)))
    };
    wait(Duration::from_secs(20), &format!("{pod} to be reported as a holder"), held).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}

/// Deletes all pods, and waits until no slice is held or reserved.
async fn empty(cluster: &Cluster) -> anyhow::Result<()> {
    cluster
        .pods()
        .delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default())
        .await?;
    wait(Duration::from_mins(1), "all slices to be idle", async || {
        for node in cluster.nodes() {
            let node = cluster.gpu_node(node.name()).await?;
            let held = node.read_status()?.unwrap_or_default().slices.iter().any(|s| s.holder.is_some());
            if held || node.read_desired()?.slices.iter().any(|s| s.reservation.is_some()) {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await
}
