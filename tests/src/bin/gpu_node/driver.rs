//! What brings the driver into the agent's container, where NVIDIA's container toolkit does it in other clusters: a CDI
//! specification, as `nvidia-ctk cdi generate` writes one, of which the pod's annotation names the device.

use std::fs;

use anyhow::Context as _;
use kerf_tests::mps::MpsStandIn;
use kerf_tests::real_node::{Gpus, simulated_gpus};
use serde_json::{Value, json};

use crate::args::{Args, DRIVER};

/// The kind of device.
const KIND: &str = "gpu-node.kerf.dev/driver";

/// The annotation of pods that get it.
pub fn annotation() -> Value {
    json!({"cdi.k8s.io/driver": format!("{KIND}=all")})
}

/// Writes the specification to where containerd looks.
pub fn write(args: &Args, gpus: &Gpus) -> anyhow::Result<()> {
    let spec = json!({
        "cdiVersion": "0.6.0", "kind": KIND,
        "devices": [{"name": "all", "containerEdits": edits(args, gpus)?}],
    });
    fs::write(args.places().cdi().join("gpu-node.json"), spec.to_string())
        .context("failed to write the driver's CDI specification")
}

fn edits(args: &Args, gpus: &Gpus) -> anyhow::Result<Value> {
    let same =
        |path: &str, options: &[&str]| json!({"hostPath": path, "containerPath": path, "options": options});
    let Gpus::Simulated(gpus) = gpus else {
        return Ok(json!({"mounts": [same(DRIVER, &["ro", "rbind"])]}));
    };
    let files = simulated_gpus(gpus, &args.places())?;
    let env = files.env().into_iter().map(|(key, value)| format!("{key}={}", value.to_string_lossy()));
    Ok(json!({
        "env": env.collect::<Vec<_>>(),
        "mounts": [same(&args.places().nvml().display().to_string(), &["rw", "rbind"])],
    }))
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
