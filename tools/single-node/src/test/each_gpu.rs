//! Shares on several GPUs: each GPU has its own MPS daemon, and the loss of one does not affect the others.

use crate::real_node::Process;
use anyhow::{Context as _, ensure};

use super::scene::Scene;
use super::users::{daemons, servers};
use super::whole::ONE;
use crate::job::Job;

/// How often each pod tries its limit, in both directions.
const TRIES: usize = 25;

pub async fn has_its_own_server(scene: &Scene<'_>) -> anyhow::Result<String> {
    if scene.gpus < 2 {
        return Ok(ONE.to_owned());
    }
    let jobs: Vec<_> = scene.one_a_gpu("each")?.into_iter().map(|job| job.trying(TRIES)).collect();
    let seen = scene.run(&jobs).await?;
    scene.held_by(&jobs).await?;
    let mut gpus = Vec::new();
    for job in &jobs {
        gpus.extend(scene.node.gpus_of(&job.name).await?);
    }
    gpus.sort();
    gpus.dedup();
    ensure!(gpus.len() == jobs.len(), "{} pods are on the GPUs {gpus:?}", jobs.len());
    scene.work_on(&jobs).await?;
    let reported: Vec<String> = seen.iter().map(ToString::to_string).collect();
    if !scene.is_real() {
        return Ok(format!("each saw its own: {}", reported.join("; ")));
    }
    for gpu in &gpus {
        let (daemons, servers) = (daemons(scene.args, gpu), servers(scene.args, gpu));
        ensure!(
            (daemons.len(), servers.len()) == (1, 1),
            "expected a daemon and a server of {gpu}, saw {daemons:?} and {servers:?}"
        );
    }
    one_is_lost(scene, &jobs).await?;
    Ok(format!(
        "each saw its own: {}; a server was killed, and only its GPU's pod ended",
        reported.join("; ")
    ))
}

/// Kills one GPU's server: its pod fails, the others keep working.
async fn one_is_lost(scene: &Scene<'_>, jobs: &[Job]) -> anyhow::Result<()> {
    let (one, others) = jobs.split_first().context("there are pods")?;
    let gpus = scene.node.gpus_of(&one.name).await?;
    let servers = gpus.iter().flat_map(|gpu| servers(scene.args, gpu));
    servers.collect::<Vec<_>>().iter().try_for_each(Process::kill)?;
    scene.pods.in_phase(&one.name, &["Failed"]).await?;
    scene.work_on(others).await
}
