//! What the agent's container gets of the driver, where NVIDIA's container toolkit brings it in other clusters.

use anyhow::Context as _;
use kerf_tests::mps::MpsStandIn;
use kerf_tests::real_node::{Gpus, NVIDIA, RuntimeHandler, simulated_gpus};

use crate::args::{Args, DRIVER};

/// The driver's files, where images of GPU machines have them; simulated GPUs are files, and variables that name them.
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

/// The agent's flags for it.
pub fn flags(gpus: &Gpus) -> anyhow::Result<Vec<String>> {
    let Gpus::Simulated(_) = gpus else { return Ok(Vec::new()) };
    // The host's root is mounted there.
    let inside = |path: std::path::PathBuf| format!("/driver-root{}", path.display());
    let library = kerf_nvml_mock::library_path().context("the simulated NVML is not built")?;
    Ok(vec![
        format!("--nvml={}", inside(library)),
        format!("--mps-control={}", inside(MpsStandIn::program()?)),
        "--no-device-access".to_owned(),
    ])
}
