//! Shares of many sizes, several at a time: each pod gets exactly what it asked for.

use std::time::Duration;

use anyhow::ensure;
use kerf_tests::percentile;

use super::scene::Scene;
use crate::job::{Ask, Job};

/// GiB of a share, and how many run at a time: fifty pods on a GPU of 141 GB, and fewer on smaller GPUs.
const ROUNDS: [(u64, usize); 8] = [(10, 7), (10, 3), (10, 1), (4, 12), (20, 6), (40, 3), (5, 10), (16, 8)];

/// How often each pod tries its limit, in both directions.
const TRIES: usize = 4;

/// Targets of the project: from creation to a running container, and from creation to binding.
const RUNNING_LIMIT: Duration = Duration::from_secs(2);
const BINDING_LIMIT: Duration = Duration::from_millis(200);

/// How much later a pod with a share may run than one without a GPU, each at p50.
const EXTRA_TIME_LIMIT: Duration = Duration::from_millis(150);

/// Prefix of the names of pods with a share.
const PREFIX: &str = "limits-";

/// Prefix of the names of pods without a GPU.
const CONTROLS: &str = "control-";

pub async fn limits(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut pods = 0;
    for (round, (gib, most)) in ROUNDS.into_iter().enumerate() {
        let count = most.min(scene.room_for(gib));
        let job = |number| Job::new(format!("{PREFIX}{round}-{number}"), Ask::Share(gib)).trying(TRIES);
        let jobs: Vec<Job> = (0..count).map(job).collect();
        let seen = scene.run(&jobs).await?;
        scene.held_by(&jobs).await?;
        println!(
            "       {count} at a time of {gib} GiB: {}",
            seen.last().map(ToString::to_string).unwrap_or_default()
        );
        scene.clear().await?;
        // As many pods without a GPU in the same run show which part of the time is not kerf's.
        let control = |number| Job::new(format!("{CONTROLS}{round}-{number}"), Ask::Share(gib));
        scene.run_controls(&(0..count).map(control).collect::<Vec<_>>()).await?;
        scene.clear().await?;
        pods += count;
    }
    reported_times(scene, pods)?;
    if !scene.is_real() {
        return Ok(format!("{pods} pods received their limits; only a GPU shows whether these hold"));
    }
    let tries = pods * TRIES;
    Ok(format!("{pods} pods, {tries} tries: always had a fifth less than the share, never a fifth more"))
}

/// Prints how long the pods took, beside the pods without a GPU of the same run.
fn reported_times(scene: &Scene<'_>, pods: usize) -> anyhow::Result<()> {
    let (bound, running) = (scene.clock.bound(PREFIX), scene.clock.running(PREFIX));
    let controls = scene.clock.running(CONTROLS);
    ensure!(
        [&bound, &running, &controls].into_iter().all(|seen| seen.len() == pods),
        "of {pods} pods with a share and as many without, {} and {} ran by the watch",
        running.len(),
        controls.len()
    );
    let more = median(&running).saturating_sub(median(&controls));
    for (what, took, bar) in [
        ("created to running", &running, Some(RUNNING_LIMIT)),
        ("of it, to bound", &bound, Some(BINDING_LIMIT)),
        ("created to running without a GPU", &controls, None),
    ] {
        let [half, most, all] =
            [50, 95, 100].map(|percent| millis(percentile(took, percent).unwrap_or_default()));
        let bar = bar.map(|bar| against(median(took), bar)).unwrap_or_default();
        println!("       {what}: p50 {half:.0} ms{bar}, p95 {most:.0}, longest {all:.0}");
    }
    println!("       a share costs {:.0} ms at p50{}", millis(more), against(more, EXTRA_TIME_LIMIT));
    Ok(())
}

fn median(took: &[Duration]) -> Duration {
    percentile(took, 50).unwrap_or_default()
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

fn against(took: Duration, bar: Duration) -> String {
    format!(" (bar {:.0} ms, {})", millis(bar), if took <= bar { "met" } else { "NOT MET" })
}
