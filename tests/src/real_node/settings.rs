//! The settings of the machine's GPUs that a node with MPS shares must leave as they are.

use std::process::Command;

use anyhow::{Context as _, ensure};

/// As nvidia-smi names them.
const FIELDS: &str = "uuid,mig.mode.current,mig.mode.pending,compute_mode,persistence_mode,power.limit";

/// These are being withdrawn: where a driver does not tell them, it is compared that it does not.
const CLOCKS: &str = "clocks.applications.graphics,clocks.applications.memory";

/// The settings of all GPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSettings {
    told: String,
    clocks: Result<String, String>,
}

impl GpuSettings {
    /// Asks nvidia-smi.
    pub fn read() -> anyhow::Result<Self> {
        Ok(Self { told: ask(FIELDS)?, clocks: ask(CLOCKS).map_err(|error| error.to_string()) })
    }

    /// Fails if they are not these any more.
    pub fn unchanged(&self) -> anyhow::Result<()> {
        let now = Self::read()?;
        ensure!(*self == now, "settings of the GPUs ({FIELDS}; {CLOCKS}) were\n{self:?}\nand are\n{now:?}");
        Ok(())
    }
}

fn ask(fields: &str) -> anyhow::Result<String> {
    let query = format!("--query-gpu={fields}");
    let output = Command::new("nvidia-smi").args([&query, "--format=csv,noheader"]).output();
    let output = output.context("failed to run nvidia-smi, which tells the GPUs' settings")?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(output.status.success(), "nvidia-smi failed: {text}");
    Ok(text)
}
