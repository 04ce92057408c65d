//! Shares of many sizes, several at a time: each has what it asked for, and no more.

use std::time::Duration;

use anyhow::ensure;
use kerf_tests::percentile;

use super::scene::Scene;
use crate::job::{Ask, Job};

/// GiB of a share, and how many at a time: fifty pods, never more than the GPU has.
const ROUNDS: [(u64, usize); 8] = [(10, 7), (10, 3), (10, 1), (4, 12), (20, 6), (40, 3), (5, 10), (16, 8)];

/// How often each pod tries its limit.
const TRIES: usize = 3;

/// From created to a running container, and the part of it that is kerf's and the scheduler's: bars of the project.
const RUNNING: Duration = Duration::from_secs(2);
const BOUND: Duration = Duration::from_millis(200);

/// Each pod's name begins so.
const PREFIX: &str = "limits-";

pub async fn limits(scene: &Scene<'_>) -> anyhow::Result<String> {
    let mut pods = 0;
    for (round, (gib, count)) in ROUNDS.into_iter().enumerate() {
        let job = |number| Job::new(format!("{PREFIX}{round}-{number}"), Ask::Share(gib)).trying(TRIES);
        let jobs: Vec<Job> = (0..count).map(job).collect();
        let seen = scene.run(&jobs).await?;
        scene.held_by(&jobs).await?;
        println!(
            "       {count} at a time of {gib} GiB: {}",
            seen.last().map(ToString::to_string).unwrap_or_default()
        );
        scene.clear().await?;
        pods += count;
    }
    let (bound, running) = (scene.clock.bound(PREFIX), scene.clock.running(PREFIX));
    ensure!(
        bound.len() == pods && running.len() == pods,
        "of {pods} pods {} ran by the watch",
        running.len()
    );
    for (what, took, bar) in [("created to running", &running, RUNNING), ("of it, to bound", &bound, BOUND)] {
        let [half, most, all] = [50, 95, 100].map(|percent| percentile(took, percent).unwrap_or_default());
        let [half_ms, most_ms, all_ms] = [half, most, all].map(|took| took.as_secs_f64() * 1e3);
        let met = if half <= bar { "met" } else { "NOT MET" };
        println!(
            "       {what}: p50 {half_ms:.0} ms (bar {} ms, {met}), p95 {most_ms:.0}, longest {all_ms:.0}",
            bar.as_millis()
        );
    }
    if !scene.is_real() {
        return Ok(format!("{pods} pods were told their limits; whether these hold takes a GPU"));
    }
    let tries = pods * TRIES;
    Ok(format!("{pods} pods, {tries} tries: always had a fifth less than the share, never a fifth more"))
}
