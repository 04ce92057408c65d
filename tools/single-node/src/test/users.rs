//! Pods of different users share one MPS server.

use std::path::PathBuf;

use crate::real_node::Process;
use anyhow::ensure;
use kerf_core::names::GpuUuid;

use super::scene::Scene;
use crate::args::Args;
use crate::job::{Ask, Job};

const USERS: [u32; 2] = [1000, 2000];

pub async fn share_one_server(scene: &Scene<'_>) -> anyhow::Result<String> {
    let jobs = USERS
        .map(|user| Job { user: Some(user), ..Job::new(format!("user-{user}"), Ask::Share(10)).trying(1) });
    let seen = scene.run(&jobs).await?;
    let users: Vec<u32> = seen.iter().map(|seen| seen.user).collect();
    ensure!(users == USERS, "expected the users {USERS:?}, saw {users:?}");
    scene.work_on(&jobs).await?;
    let [one, other] = USERS;
    if !scene.is_real() {
        return Ok(format!("{one} and {other} run side by side; without a GPU there is no server"));
    }
    let servers = scene.servers_of(&jobs).await?;
    ensure!(servers.len() == 1, "expected one server, saw {servers:?}");
    Ok(format!("{one} and {other} work side by side behind one server"))
}

/// The MPS servers of this GPU.
pub fn servers(args: &Args, gpu: &GpuUuid) -> Vec<Process> {
    processes(args, gpu, "nvidia-cuda-mps-server")
}

/// The MPS daemons of this GPU.
pub fn daemons(args: &Args, gpu: &GpuUuid) -> Vec<Process> {
    processes(args, gpu, "nvidia-cuda-mps-control")
        .into_iter()
        .filter(|daemon| daemon.arguments.contains("-f\0"))
        .collect()
}

/// The folder that the chart's agent uses for them.
const MPS_OF_THE_CHART: &str = "/run/kerf/mps";

/// The folder with the folders of the MPS daemons, as seen outside of the node's mount namespace.
pub fn mps_root(args: &Args) -> PathBuf {
    if args.chart { args.run.join("kerf/mps") } else { args.places().mps() }
}

/// Processes of this program whose pipe folder belongs to this GPU and node.
fn processes(args: &Args, gpu: &GpuUuid, program: &str) -> Vec<Process> {
    let mps = if args.chart { MPS_OF_THE_CHART.into() } else { args.places().mps() };
    let pipes = format!("CUDA_MPS_PIPE_DIRECTORY={}/{gpu}/", mps.display());
    let ours = |process: &Process| {
        let first = process.arguments.split('\0').next().unwrap_or_default();
        first.rsplit('/').next() == Some(program) && process.environment.contains(&pipes)
    };
    Process::all().into_values().filter(ours).collect()
}
