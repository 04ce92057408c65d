//! Pods that ask for whole GPUs.

use anyhow::ensure;
use kube::api::DeleteParams;

use super::scene::Scene;
use crate::job::{Ask, Job};

/// Each GPU has a share, so the pod stays pending until one of the shares ends, and gets that GPU.
pub async fn waits_for_the_shares(scene: &Scene<'_>) -> anyhow::Result<String> {
    let shares = scene.one_a_gpu("whole-before")?;
    scene.run(&shares).await?;
    let whole = Job::new("whole", Ask::Gpus(1));
    scene.create(&whole).await?;
    let reason = scene.pods.event(&whole.name, "nodes are available").await?;
    scene.work_on(&shares).await?;
    ensure!(
        scene.pods.phase(&whole.name).await? == "Pending",
        "the whole GPU was given away with a share on it"
    );
    scene.pods.api().delete(&shares[0].name, &DeleteParams::default()).await?;
    let seen = scene.expect(&whole).await?;
    scene.work_on(&shares[1..]).await?;
    Ok(format!("it waited ({reason}), then it saw {seen}"))
}

/// With a second GPU the pod runs at once.
pub async fn beside_a_share(scene: &Scene<'_>) -> anyhow::Result<String> {
    if scene.gpus < 2 {
        return Ok(ONE.to_owned());
    }
    let share = Job::new("beside-share", Ask::Share(10)).trying(1);
    let whole = Job::new("beside-whole", Ask::Gpus(1));
    let jobs = [share, whole];
    let seen = scene.run(&jobs).await?;
    scene.held_by(&jobs).await?;
    scene.work_on(&jobs).await?;
    let [share, whole] = [scene.node.gpus_of(&jobs[0].name).await?, scene.node.gpus_of(&jobs[1].name).await?];
    ensure!(
        share.len() == 1 && whole.len() == 1 && share != whole,
        "the share is on {share:?}, the GPU {whole:?}"
    );
    Ok(format!("the share saw {}, the whole GPU {}", seen[0], seen[1]))
}

/// Two GPUs for one pod, which works on both and copies between them.
pub async fn two_for_one_pod(scene: &Scene<'_>) -> anyhow::Result<String> {
    if scene.gpus < 2 {
        return Ok(ONE.to_owned());
    }
    let pair = Job::new("pair", Ask::Gpus(2));
    let seen = scene.run(std::slice::from_ref(&pair)).await?;
    scene.work_on(std::slice::from_ref(&pair)).await?;
    let gpus = scene.node.gpus_of(&pair.name).await?;
    ensure!(gpus.len() == 2, "the pod of two GPUs holds {gpus:?}");
    let copies = if scene.is_real() { ", and copied between them" } else { "" };
    Ok(format!("it saw {}{copies}", seen[0]))
}

pub const ONE: &str = "not played: it takes two GPUs";
