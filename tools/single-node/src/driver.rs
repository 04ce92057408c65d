//! Gives the agent's container the driver's files, as NVIDIA's container toolkit does in other clusters.

use crate::real_node::{Gpus, NVIDIA, RuntimeHandler, simulated_gpus};
use anyhow::Context as _;
use kerf_tests::mps::MpsStandIn;

use crate::args::{Args, DRIVER};

/// Brings the driver's files from where images of GPU machines keep them. A simulated GPU consists of files,
/// and variables that name them.
pub fn handler(args: &Args, gpus: &Gpus) -> anyhow::Result<RuntimeHandler> {
    let bringing =
        |folder| RuntimeHandler { name: NVIDIA, files: vec![(folder, None)], ..RuntimeHandler::default() };
    let Gpus::Simulated(gpus) = gpus else {
        return Ok(bringing(DRIVER.into()));
    };
    let files = simulated_gpus(gpus, &args.places())?;
    let env = files.env().into_iter().map(|(key, value)| format!("{key}={}", value.display()));
    Ok(RuntimeHandler { writable: true, env: env.collect(), ..bringing(args.places().nvml()) })
}

/// The agent's flags for simulated GPUs; none for real ones.
pub fn flags(gpus: &Gpus) -> anyhow::Result<Vec<String>> {
    let Gpus::Simulated(_) = gpus else { return Ok(Vec::new()) };
    // Paths begin with this folder, because the agent's container mounts the host's root there.
    let inside = |path: std::path::PathBuf| format!("/driver-root{}", path.display());
    let library = kerf_nvml_mock::library_path().context("the simulated NVML is not built")?;
    Ok(vec![
        format!("--nvml={}", inside(library)),
        format!("--mps-control={}", inside(MpsStandIn::program()?)),
        "--no-device-access".to_owned(),
    ])
}
