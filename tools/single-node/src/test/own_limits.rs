//! Pods that try to loosen their own limits.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use kerf_tests::cluster::wait;
use kerf_tests::pods::phase_of;

use super::scene::Scene;
use crate::job::{Ask, Job};

/// Variables that lead past a share's server, or raise its limits.
const VARIABLES: [(&str, &str); 3] = [
    ("CUDA_MPS_PIPE_DIRECTORY", ""),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=64G"),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
];

/// Twice the pod's share, so that the agent notices the overuse.
const KEEP_MIB: u64 = 20 * 1024;

pub async fn are_caught(scene: &Scene<'_>) -> anyhow::Result<String> {
    for (name, value) in VARIABLES {
        let job = Job { environment: vec![(name, value)], ..Job::new("own-limits", Ask::Share(10)) };
        let refusal = scene.pods.refusal(&job.pod(scene.args)?).await?;
        ensure!(refusal.contains(name), "the refusal does not name {name}: {refusal}");
    }
    if !scene.is_real() {
        return Ok("refused by name at admission; the rest of this scene needs a GPU".to_owned());
    }
    let neighbour = Job::new("own-limits-neighbour", Ask::Share(10));
    scene.run(std::slice::from_ref(&neighbour)).await?;
    let job = Job { outside: true, ..Job::new("own-limits-outside", Ask::Share(10)).keeping(KEEP_MIB) };
    scene.create(&job).await?;
    let reported = scene.pods.event(&job.name, "The pod's processes use").await?;
    let ended = async || {
        let pod = scene.pods.api().get_opt(&job.name).await?;
        Ok(pod.is_none_or(|pod| matches!(phase_of(&pod), "Failed" | "Succeeded")))
    };
    wait(Duration::from_secs(30), "the pod to be evicted", ended).await.context(reported.clone())?;
    scene.work_on(std::slice::from_ref(&neighbour)).await?;
    Ok(format!("refused by name at admission; a pod that left its server was warned and evicted: {reported}"))
}
