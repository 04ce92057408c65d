//! Compares `kerf gpu list` with nvidia-smi, and kerf's catalog of MIG profiles with NVML. Neither needs MIG
//! mode: NVML reports profiles and placements also while it is off.

use std::process::Command;

use anyhow::{Context as _, ensure};
use kerf_tests::binaries;
use serde_json::Value;

use super::scene::Scene;

pub fn agrees_with_nvml(scene: &Scene<'_>) -> anyhow::Result<String> {
    if !scene.is_real() {
        return Ok("without a GPU there is nothing to compare with".to_owned());
    }
    let smi = rows_of_nvidia_smi()?;
    let listed: Vec<Vec<String>> = kerf(scene, "list")?.iter().map(listed).collect();
    ensure!(listed == smi, "kerf gpu list says {listed:?}, nvidia-smi {smi:?}");
    let mut reported = Vec::new();
    for gpu in kerf(scene, "profiles")? {
        let model =
            gpu["model"].as_str().with_context(|| format!("the catalog does not have {}", gpu["product"]))?;
        let profiles = gpu["profiles"].as_array().map_or(0, Vec::len);
        ensure!(profiles > 0, "NVML reports no profiles of {model}");
        let differences = gpu["differences"].as_array().context("kerf gpu profiles names no differences")?;
        ensure!(differences.is_empty(), "the catalog differs from NVML: {differences:?}");
        reported.push(format!("{profiles} profiles of {model}"));
    }
    Ok(format!(
        "index, UUID, name and memory as nvidia-smi has them; names, ids, placements and memory of {}",
        reported.join(", ")
    ))
}

/// The GPUs that `kerf gpu` reports.
fn kerf(scene: &Scene<'_>, what: &str) -> anyhow::Result<Vec<Value>> {
    let mut command = Command::new(binaries::ours("kerf")?);
    command.args(["gpu", what, "--output=json", "--nvml"]).arg(scene.args.nvml());
    let output = command.output().context("failed to run kerf")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kerf gpu {what} failed: {said}");
    let mut report: Value = serde_json::from_slice(&output.stdout).context("kerf gpu printed no JSON")?;
    ensure!(report["silent"].as_array().is_some_and(Vec::is_empty), "GPUs are silent: {report}");
    serde_json::from_value(report["gpus"].take()).context("kerf gpu printed no list of GPUs")
}

fn listed(gpu: &Value) -> Vec<String> {
    let text = |key: &str| gpu[key].as_str().map_or_else(|| gpu[key].to_string(), str::to_owned);
    ["index", "uuid", "product", "memoryMib"].map(text).into()
}

fn rows_of_nvidia_smi() -> anyhow::Result<Vec<Vec<String>>> {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]);
    let output = command.output().context("failed to run nvidia-smi")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(|line| line.split(',').map(|field| field.trim().to_owned()).collect()).collect())
}
