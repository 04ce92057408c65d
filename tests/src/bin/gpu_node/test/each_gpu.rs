//! Shares on several GPUs: each GPU has a daemon of its own, whose loss is no other's.

use anyhow::ensure;
use kerf_tests::real_node::Process;

use super::scene::Scene;
use super::users::{daemons, servers};
use super::whole::ONE;

/// How often each pod tries its limit, both ways.
const TRIES: usize = 25;

pub async fn has_its_own_server(scene: &Scene<'_>) -> anyhow::Result<String> {
    if scene.gpus < 2 {
        return Ok(ONE.to_owned());
    }
    let jobs: Vec<_> = scene.one_a_gpu("each").into_iter().map(|job| job.trying(TRIES)).collect();
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
    let told: Vec<String> = seen.iter().map(ToString::to_string).collect();
    if !scene.is_real() {
        return Ok(format!("each saw its own: {}", told.join("; ")));
    }
    let (daemons, servers) = (daemons(scene.args), servers(scene.args));
    ensure!(
        (daemons.len(), servers.len()) == (jobs.len(), jobs.len()),
        "expected a daemon and a server a GPU, saw {daemons:?} and {servers:?}"
    );
    one_is_lost(scene, &jobs, &servers[0]).await?;
    Ok(format!("each saw its own: {}; a server was killed, and only its GPU's pod ended", told.join("; ")))
}

/// Kills one GPU's server: its pod ends, the others work on.
async fn one_is_lost(scene: &Scene<'_>, jobs: &[crate::job::Job], server: &Process) -> anyhow::Result<()> {
    server.kill()?;
    let mut ended = None;
    for job in jobs {
        let pipe = format!(
            "/{}/",
            scene.node.gpus_of(&job.name).await?.first().map(ToString::to_string).unwrap_or_default()
        );
        if server.environment.contains(&pipe) {
            ended = Some(&job.name);
        }
    }
    let Some(ended) = ended else { anyhow::bail!("the server {server:?} is on no GPU of the pods'") };
    scene.pods.in_phase(ended, &["Failed"]).await?;
    let others: Vec<_> = jobs.iter().filter(|job| job.name != *ended).cloned().collect();
    ensure!(others.len() + 1 == jobs.len(), "{ended} is none of the pods");
    scene.work_on(&others).await
}
