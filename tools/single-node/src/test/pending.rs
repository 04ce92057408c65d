//! Pods ask for more memory than the GPU has.

use std::time::Duration;

use anyhow::ensure;
use kerf_tests::cluster::wait;
use kube::api::DeleteParams;

use super::scene::Scene;
use crate::job::{Ask, Job};

const GIB: u64 = 40;

pub async fn until_capacity_is_free(scene: &Scene<'_>) -> anyhow::Result<String> {
    let fit = scene.room_for(GIB);
    let jobs: Vec<Job> = (0..fit + 2).map(|n| Job::new(format!("waiting-{n}"), Ask::Share(GIB))).collect();
    let (first, late) = jobs.split_at(fit);
    scene.run(first).await?;
    for job in late {
        scene.create(job).await?;
    }
    let mut reasons = Vec::new();
    for job in late {
        reasons.push(scene.pods.event(&job.name, "nodes are available").await?);
        ensure!(scene.pods.phase(&job.name).await? == "Pending", "{} does not wait", job.name);
    }
    // This frees capacity for one pod; either of the pending ones may get it.
    scene.pods.api().delete(&first[0].name, &DeleteParams::default()).await?;
    let one = async || Ok(pending(scene, late).await? == 1);
    wait(Duration::from_secs(40), "one of the waiting pods to run", one).await?;
    scene.work_on(&first[1..]).await?;
    ensure!(pending(scene, late).await? == 1, "more pods run than there is memory");
    scene.pods.api().delete(&first[1].name, &DeleteParams::default()).await?;
    for job in late {
        scene.expect(job).await?;
    }
    let reason = reasons.pop().unwrap_or_default();
    Ok(format!("{fit} of {} ran, each other one when another had ended; meanwhile: {reason}", jobs.len()))
}

async fn pending(scene: &Scene<'_>, jobs: &[Job]) -> anyhow::Result<usize> {
    let mut pending = 0;
    for job in jobs {
        pending += usize::from(scene.pods.phase(&job.name).await? == "Pending");
    }
    Ok(pending)
}
