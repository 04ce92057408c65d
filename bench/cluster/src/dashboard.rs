//! Draws the dashboard: pods come and go on a cluster with simulated GPUs, Prometheus scrapes the programs,
//! and its answers to the dashboard's queries become the picture.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args as ClapArgs;
use kerf_tests::cluster::Cluster;
use kerf_tests::monitoring::{Buckets, Dashboard, Drawn, Load, Prometheus, picture, scraped};
use kerf_tests::random::Random;
use tokio::time::sleep;

const STEP_INTERVAL: Duration = Duration::from_millis(1500);

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// How long pods come and go.
    #[arg(long, default_value_t = 120)]
    seconds: u32,
    /// The file for the picture.
    #[arg(long, default_value = "docs/measured/dashboard.svg")]
    out: PathBuf,
}

/// Runs the pods, queries Prometheus, and writes the picture.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut cluster = Cluster::start(Load::cluster(folder.path())?, |line| eprintln!("{line}")).await?;
    let targets = scraped(&mut cluster)?;
    let prometheus = Prometheus::start(folder.path(), &targets, Buckets::Native).await?;
    let start = seconds();
    let (began, mut random, mut load) = (Instant::now(), Random::new(1), Load::default());
    load.create(&cluster).await?;
    while began.elapsed() < Duration::from_secs(args.seconds.into()) {
        load.step(&cluster, &mut random).await?;
        sleep(STEP_INTERVAL).await;
    }
    let end = seconds();
    let dashboard = Dashboard::read()?;
    let mut drawn = Vec::new();
    for panel in dashboard.asking() {
        let mut answers = Vec::new();
        for target in &panel.targets {
            let expr = dashboard.for_all(&target.expr);
            let answer = match panel.kind.as_str() {
                "table" => prometheus.query(&expr).await?,
                _ => prometheus.query_range(&expr, start, end).await?,
            };
            answers.push((target, answer));
        }
        drawn.push(Drawn { panel, answers });
    }
    let run = format!(
        "{} pods on simulated GPUs (one H100 in MIG mode, one T4), {} s",
        load.created(),
        args.seconds
    );
    std::fs::write(&args.out, picture(&run, &drawn))
        .with_context(|| format!("failed to write {}", args.out.display()))?;
    eprintln!("wrote {}", args.out.display());
    prometheus.stop()?;
    cluster.stop().await
}

/// The current time in seconds since 1970.
fn seconds() -> f64 {
    let now = jiff::Timestamp::now();
    now.as_duration().as_secs_f64()
}
