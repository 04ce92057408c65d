//! Pods without a memory limit share a GPU by time slices.

use super::scene::Scene;
use crate::job::{Ask, Job};

const PODS: usize = 3;

pub async fn by_turns(scene: &Scene<'_>) -> anyhow::Result<String> {
    let jobs: Vec<Job> = (0..PODS).map(|n| Job::new(format!("turns-{n}"), Ask::TimeSlice(10))).collect();
    let seen = scene.run(&jobs).await?;
    scene.work_on(&jobs).await?;
    scene.held_by(&jobs).await?;
    Ok(format!("{PODS} pods by turns; each saw {}", seen.last().map(ToString::to_string).unwrap_or_default()))
}
