//! A container of another distribution, without files of the machine, compiles on its share.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::scene::Scene;
use crate::distribution;
use crate::job::{Ask, Job};

/// Timeout for importing `PyTorch` from an image that no cache has yet, and for compiling.
const TIMEOUT: Duration = Duration::from_secs(100);

/// The largest accepted difference of the compiled and the uncompiled result, which are sums of 1,024
/// products.
const APART: f64 = 1e-2;

const GIB: u64 = 10;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Compiled {
    distribution: String,
    torch: String,
    python: String,
    libcuda: Vec<String>,
    difference: f64,
    free_mib: u64,
}

pub async fn for_a_share(scene: &Scene<'_>) -> anyhow::Result<String> {
    let Some(base) = distribution::base().filter(|_| scene.is_real()) else {
        return Ok("not played: it takes a GPU and the bundle `distribution`".to_owned());
    };
    let args = scene.args.clone();
    tokio::task::spawn_blocking(move || distribution::import(&args, &base)).await??;
    let job = Job { compiles: true, ..Job::new("compiles", Ask::Share(GIB)) };
    scene.create(&job).await?;
    let pod = scene.pods.running(&job.name).await?;
    let reported = scene.line(&pod, "COMPILED ", TIMEOUT).await?;
    let seen: Compiled =
        serde_json::from_str(&reported).with_context(|| format!("the pod printed {reported}"))?;
    ensure!(!seen.libcuda.is_empty(), "ldconfig finds no driver in {}", seen.distribution);
    ensure!(seen.difference < APART, "compiled differs from uncompiled: {seen:?}");
    ensure!(seen.free_mib <= GIB * 1024, "the share's limit does not hold: {seen:?}");
    scene.work_on(std::slice::from_ref(&job)).await?;
    let Compiled { distribution, torch, python, libcuda, free_mib, .. } = seen;
    Ok(format!(
        "PyTorch {torch} on Python {python} compiled in {distribution}; {}; {free_mib} MiB free",
        libcuda.join(", ")
    ))
}
