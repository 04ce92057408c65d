//! The settings of the machine's GPUs that a node with MPS shares must not change.

use std::process::Command;

use anyhow::{Context as _, ensure};

/// The settings by their names in nvidia-smi.
const FIELDS: &str = "uuid,mig.mode.current,mig.mode.pending,compute_mode,persistence_mode,power.limit";

/// NVIDIA is withdrawing these fields. If a driver no longer reports them, the error is compared instead.
const CLOCKS: &str = "clocks.applications.graphics,clocks.applications.memory";

/// The settings of all GPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSettings {
    reported: String,
    clocks: Result<String, String>,
}

impl GpuSettings {
    /// Reads the settings from nvidia-smi.
    pub fn read() -> anyhow::Result<Self> {
        Ok(Self { reported: ask(FIELDS)?, clocks: ask(CLOCKS).map_err(|error| error.to_string()) })
    }

    /// Fails if the current settings differ from these.
    pub fn unchanged(&self) -> anyhow::Result<()> {
        let now = Self::read()?;
        ensure!(*self == now, "settings of the GPUs ({FIELDS}; {CLOCKS}) were\n{self:?}\nand are\n{now:?}");
        Ok(())
    }
}

fn ask(fields: &str) -> anyhow::Result<String> {
    let query = format!("--query-gpu={fields}");
    let output = Command::new("nvidia-smi").args([&query, "--format=csv,noheader"]).output();
    let output = output.context("failed to read the GPUs' settings with nvidia-smi")?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(output.status.success(), "nvidia-smi failed: {text}");
    Ok(text)
}
