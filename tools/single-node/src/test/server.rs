//! Kills MPS processes: a client in the middle of work, the server, the daemon.

use std::process::Command;
use std::time::Duration;

use crate::real_node::Process;
use anyhow::{Context as _, ensure};
use kerf_tests::cluster::wait;

use super::scene::Scene;
use super::users::daemons;
use crate::job::{Ask, Job};

/// The memory that the victim keeps. The driver must free it after the kill.
const KEEP_MIB: u64 = 30 * 1024;

/// How long the driver and the kubelet may take to notice.
const TIMEOUT: Duration = Duration::from_secs(20);

pub async fn client_killed(scene: &Scene<'_>) -> anyhow::Result<String> {
    let neighbour = Job::new("killed-neighbour", Ask::Share(10));
    let victim = Job::new("killed-victim", Ask::Share(40)).keeping(KEEP_MIB);
    let before = used_mib(scene)?;
    scene.run(&[neighbour.clone(), victim.clone()]).await?;
    scene.work_on(std::slice::from_ref(&victim)).await?;
    let with = used_mib(scene)?;
    client(&victim)?.kill()?;
    scene.pods.in_phase(&victim.name, &["Failed"]).await?;
    let freed = async || Ok(!scene.is_real() || used_mib(scene)? + KEEP_MIB <= with);
    wait(TIMEOUT, "the driver to give the memory back", freed).await?;
    let after = used_mib(scene)?;
    scene.work_on(std::slice::from_ref(&neighbour)).await?;
    scene.run(&[Job::new("killed-next", Ask::Share(40)).trying(1)]).await?;
    Ok(format!(
        "the used memory was {before}, {with} and {after} MiB before, with and after it; neighbour and next pod work"
    ))
}

pub async fn server_killed(scene: &Scene<'_>) -> anyhow::Result<String> {
    if !scene.is_real() {
        return Ok("without a GPU there is no server".to_owned());
    }
    let before = Job::new("server-before", Ask::Share(10));
    scene.run(std::slice::from_ref(&before)).await?;
    let killed = scene.servers_of(std::slice::from_ref(&before)).await?;
    ensure!(killed.len() == 1, "expected one server, saw {killed:?}");
    killed.iter().try_for_each(Process::kill)?;
    let pod = scene.pods.in_phase(&before.name, &["Failed"]).await?;
    let said = scene.lines(&pod).pop().unwrap_or_default();
    scene.run(&[Job::new("server-after", Ask::Share(10)).trying(1)]).await?;
    Ok(format!("its client ended ({said}), and the next pod has a new server"))
}

pub async fn daemon_killed(scene: &Scene<'_>) -> anyhow::Result<String> {
    let before = Job::new("daemon-before", Ask::Share(10));
    scene.run(std::slice::from_ref(&before)).await?;
    if !scene.is_real() {
        return Ok(SIMULATED.to_owned());
    }
    let gpu = scene.gpu_of(std::slice::from_ref(&before)).await?;
    let program = daemons(scene.args, &gpu);
    ensure!(program.len() == 1, "expected one daemon, saw {program:?}");
    program.iter().try_for_each(Process::kill)?;
    let reported = scene.pods.event(&before.name, "was restarted").await?;
    scene.run(&[Job::new("daemon-after", Ask::Share(10)).trying(1)]).await?;
    let now = daemons(scene.args, &gpu);
    ensure!(now.len() == 1 && now[0].id != program[0].id, "expected one new daemon, saw {now:?}");
    Ok(format!("restarted, and the next pod works; the pod behind it got the Event: {reported}"))
}

const SIMULATED: &str = "the stand-in for the daemon is killed in other tests";

/// The process of the job's script on this machine.
pub fn client(job: &Job) -> anyhow::Result<Process> {
    let name = format!("--name\0{}\0", job.name);
    let mut all = Process::all().into_values();
    // The process of the script is the first with both in its arguments.
    all.find(|process| process.arguments.contains(&name) && process.arguments.contains("sees.py"))
        .with_context(|| format!("no process of {} is on this machine", job.name))
}

/// Used memory of all GPUs, as the driver reports it; 0 without a GPU.
fn used_mib(scene: &Scene<'_>) -> anyhow::Result<u64> {
    if !scene.is_real() {
        return Ok(0);
    }
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=memory.used", "--format=csv,noheader,nounits"]);
    let output = command.output().context("failed to run nvidia-smi")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let each: Result<Vec<u64>, _> = text.lines().map(|line| line.trim().parse()).collect();
    each.map(|used| used.iter().sum()).with_context(|| format!("nvidia-smi said {text:?}"))
}
