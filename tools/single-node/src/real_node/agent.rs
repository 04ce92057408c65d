//! Starts kerf's agent on the node as its `DaemonSet` would.

use anyhow::Context as _;
use kerf_nvml_mock::{MockConfig, MockFiles};

use super::containerd::search_path;
use super::{Gpus, Places, RealNodeOptions};
use kerf_tests::binaries;
use kerf_tests::cluster::{Cluster, NAMESPACE};
use kerf_tests::mps::MpsStandIn;
use kerf_tests::process::Program;

const NAME: &str = "kerf-node-agent";

/// The agent with the rights of its service account on this node, which must exist.
pub async fn program(cluster: &Cluster, options: &RealNodeOptions) -> anyhow::Result<Program> {
    let (plane, places) = (cluster.plane(), &options.places);
    let account = plane.kubeconfig_for_service_account_on_node(NAMESPACE, NAME, &options.name).await?;
    let extender = cluster.extender_flags(&options.name, &places.state().join("extender-token")).await?;
    let program = Program::new(NAME, binaries::ours(NAME)?, places.state())
        .args(["--kubeconfig".into(), account])
        .args(["--node", &options.name, "--admin-address", "127.0.0.1:0"])
        .args(extender)
        .args(["--state-dir".into(), places.agent()])
        .args(["--cdi-dir".into(), places.cdi()])
        .args(["--mps-dir".into(), places.mps()]);
    match &options.gpus {
        Gpus::Real { nvml, mps_control } => Ok(program
            .arg("--nvml")
            .arg(nvml)
            .arg("--cdi-hook")
            .arg(binaries::ours("kerf-cdi-hook")?)
            .arg("--mps-control")
            .arg(mps_control)
            // The MPS daemon finds its server through PATH, so its folder must be in it.
            .env("PATH", search_path(mps_control.parent())?)),
        Gpus::Simulated(gpus) => simulated(program, gpus, places),
    }
}

fn simulated(program: Program, gpus: &MockConfig, places: &Places) -> anyhow::Result<Program> {
    let files = simulated_gpus(gpus, places)?;
    let library = kerf_nvml_mock::library_path().context("the simulated NVML is not built")?;
    let program = program
        .args(["--nvml".into(), library])
        .arg("--no-device-access")
        .args(["--mps-control".into(), MpsStandIn::program()?]);
    Ok(files.env().into_iter().fold(program, |program, (key, value)| program.env(key, value)))
}

pub fn simulated_gpus(gpus: &MockConfig, places: &Places) -> anyhow::Result<MockFiles> {
    let folder = places.nvml();
    std::fs::create_dir_all(&folder).context("failed to create the simulated GPUs' folder")?;
    let files = MockFiles::in_folder(&folder);
    gpus.write(&files.config)?;
    Ok(files)
}

/// The agent's command `leave`, which undoes its settings. The node's kubelet ends too, so it need not wait
/// long until the kubelet forgets the names.
pub fn leaving(program: Program, options: &RealNodeOptions) -> Program {
    program.named("kerf-node-agent-leaving", options.places.state()).arg("leave").args(["--settle", "1s"])
}
