//! Measures what the webhook adds to a pod's creation, whether rotations and restarts fail admissions, and
//! its memory.
//!
//! Pods are created in dry-run mode at a steady rate. Rounds with the webhook alternate with rounds of the
//! same pod with an unrelated annotation, for which the webhook is not called. The webhook adds the
//! difference of the medians of each pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args as ClapArgs;
use kerf_tests::admission::{AdmissionScene, Load, Sample, asking, create_gpu_nodes, failures, plain};
use kerf_tests::cluster::wait;

use crate::admission_metrics::{Histogram, scrape};
use crate::beside_nothing;
use crate::process::{peak_mib, resident_mib};
use crate::report::{Figure, Latency, print, print_figures};

/// The bars of issue 6.
const HANDLER_P99_MS: f64 = 0.5;
const ADDED_MEDIAN_MS: f64 = 2.0;
const RESIDENT_MIB: f64 = 16.0;

/// Lifetimes of certificates that expire within the measurement.
const SHORT_LIVES: [&str; 3] = ["--tls-leaf-age=10s", "--tls-ca-age=30s", "--grace=2s"];
const TIMEOUT: Duration = Duration::from_mins(2);

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Admissions a second.
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Pairs of rounds.
    #[arg(long, default_value_t = 15)]
    pairs: u32,
    /// The length of a round, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    round_ms: u64,
    /// `GpuNodes` of eight GPUs in the inventory.
    #[arg(long, default_value_t = 1000)]
    nodes: u32,
    /// Measures, in place of all else, the handler beside one that allows everything.
    #[arg(long)]
    beside_nothing: bool,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let mut scene = AdmissionScene::start().await?;
    scene.add_replica(&[]).await?;
    print(&format!("# {} GpuNodes are written", args.nodes));
    create_gpu_nodes(scene.plane(), args.nodes).await?;
    if args.beside_nothing {
        let round = Duration::from_millis(args.round_ms);
        let figures = beside_nothing::measure(&scene, args.rate, args.pairs, round).await?;
        print_figures(&figures);
        return scene.stop().await;
    }
    let mut figures = latency(&scene, args).await?;
    // Memory is measured twice, because a replica that got the objects one by one needs another amount than one that
    // lists them at its start.
    let grown = resident_mib(process(&scene)?)?;
    scene.restart(0).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let listed = resident_mib(process(&scene)?)?;
    let peak = peak_mib(process(&scene)?)?;
    print(&format!(
        "# resident: {grown:.1} MiB after the load, {listed:.1} after a restart, at most {peak:.1}"
    ));
    let name = format!("resident with {} GpuNodes, MiB", args.nodes);
    figures.push(Figure::at_most(&name, grown.max(listed), RESIDENT_MIB));
    figures.push(rotation(&mut scene, args).await?);
    print_figures(&figures);
    scene.stop().await
}

fn process(scene: &AdmissionScene) -> anyhow::Result<u32> {
    Ok(scene.replicas().first().context("no replica runs")?.process())
}

/// The handler's own time, and what the webhook adds to a creation.
async fn latency(scene: &AdmissionScene, args: &Args) -> anyhow::Result<Vec<Figure>> {
    let replica = scene.replicas().first().context("no replica runs")?;
    // The test's proxy is left out, because no cluster has it.
    scene.call(replica.address()).await?;
    let load = scene.load(args.rate);
    warm_up(&load).await?;
    let before = Histogram::read(&scrape(replica.admin()).await?)?;
    let round = Duration::from_millis(args.round_ms);
    let (mut added, mut with, mut without) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..args.pairs {
        // The order alternates, so that a drift of the machine cancels out.
        let (ours, others) = paired(&load, round, pair % 2 == 0).await?;
        added.push(median(&ours) - median(&others));
        with.extend(ours);
        without.extend(others);
    }
    let handler = Histogram::read(&scrape(replica.admin()).await?)?.since(&before);
    for (name, times) in [("with the webhook", &with), ("without", &without)] {
        let latency = Latency::from_samples(times.clone());
        print(&format!(
            "{name:<18} n {:>6}   p50 {:>6.2} ms   p99 {:>6.2} ms   max {:>6.2} ms",
            latency.count, latency.p50_ms, latency.p99_ms, latency.max_ms
        ));
    }
    added.sort_by(f64::total_cmp);
    let added = added.get(added.len() / 2).copied().context("no pair was measured")?;
    let (count, half) = (handler.count(), handler.percentile_ms(50));
    print(&format!("# the handler answered {count} times, half of them within {half:.2} ms by its buckets"));
    Ok(vec![
        Figure::at_most(
            "handler, p99 (its bucket's upper end), ms",
            handler.percentile_ms(99),
            HANDLER_P99_MS,
        ),
        Figure::at_most("added by the webhook, median over pairs, ms", added, ADDED_MEDIAN_MS),
    ])
}

/// Opens connections and loads code before the first measured round.
async fn warm_up(load: &Load) -> anyhow::Result<()> {
    let admitted = async || {
        let samples = load.run_for(&asking(), true, Duration::from_millis(500)).await;
        Ok(failures(&samples).is_empty())
    };
    wait(TIMEOUT, "the webhook to answer", admitted).await?;
    load.run_for(&plain(), false, Duration::from_millis(500)).await;
    Ok(())
}

/// One round with the webhook and one without, in either order.
async fn paired(
    load: &Load,
    round: Duration,
    ours_first: bool,
) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let ours = async || times(load.run_for(&asking(), true, round).await);
    let others = async || times(load.run_for(&plain(), false, round).await);
    if ours_first {
        let ours = ours().await?;
        Ok((ours, others().await?))
    } else {
        let others = others().await?;
        Ok((ours().await?, others))
    }
}

fn times(samples: Vec<Sample>) -> anyhow::Result<Vec<Duration>> {
    ensure!(failures(&samples).is_empty(), "of {}: {:#?}", samples.len(), failures(&samples));
    Ok(samples.into_iter().map(|sample| sample.took).collect())
}

fn median(times: &[Duration]) -> f64 {
    Latency::from_samples(times.to_vec()).p50_ms
}

/// Leaf and authority rotate, and both replicas restart under load.
async fn rotation(scene: &mut AdmissionScene, args: &Args) -> anyhow::Result<Figure> {
    scene.begin_anew().await?;
    for _ in 0..2 {
        scene.add_replica(&SHORT_LIVES).await?;
    }
    let first = scene.trusted().await?;
    let done = Arc::new(AtomicBool::new(false));
    let (load, ended) = (scene.load(args.rate), done.clone());
    let loading =
        tokio::spawn(async move { load.run(&asking(), true, || ended.load(Ordering::Relaxed)).await });
    let begun = Instant::now();
    let mut leaves = vec![scene.leaf().await?];
    let mut restarted = false;
    // The load lasts until the first authority is gone from the `caBundle`, and two seconds more.
    while scene.trusted().await?.iter().any(|authority| first.contains(authority)) {
        ensure!(begun.elapsed() < TIMEOUT, "the first authority is still there");
        let leaf = scene.leaf().await?;
        if leaves.last() != Some(&leaf) {
            leaves.push(leaf);
        }
        // The replicas restart while the bundle has two authorities, so in the middle of a rotation.
        if scene.trusted().await?.len() == 2 && !restarted {
            scene.restart(0).await?;
            scene.restart(1).await?;
            restarted = true;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    done.store(true, Ordering::Relaxed);
    let samples = loading.await?;
    ensure!(restarted && leaves.len() > 1, "nothing happened meanwhile");
    print(&format!(
        "# {} admissions in {:.0} s: the authority and {} leaves replaced, two replicas restarted",
        samples.len(),
        begun.elapsed().as_secs_f64(),
        leaves.len() - 1
    ));
    let failures = failures(&samples);
    for (reason, count) in &failures {
        print(&format!("# failed {count} times: {reason}"));
    }
    let count: usize = failures.iter().map(|(_, count)| count).sum();
    Ok(Figure::at_most("failed in rotation and rolling restart", f64::from(u32::try_from(count)?), 0.0))
}
