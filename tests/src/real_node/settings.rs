//! The settings of the machine's GPUs that a node with MPS shares must leave as they are.

use std::process::Command;

use anyhow::{Context as _, ensure};

/// As nvidia-smi names them.
const FIELDS: &str = "uuid,mig.mode.current,mig.mode.pending,compute_mode,persistence_mode,power.limit,\
                      clocks.applications.graphics,clocks.applications.memory";

/// The settings of all GPUs at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSettings(String);

impl GpuSettings {
    /// Asks nvidia-smi.
    pub fn read() -> anyhow::Result<Self> {
        let fields = format!("--query-gpu={FIELDS}");
        let output = Command::new("nvidia-smi").args([&fields, "--format=csv,noheader"]).output();
        let output = output.context("failed to run nvidia-smi, which tells the GPUs' settings")?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        ensure!(output.status.success(), "nvidia-smi failed: {text}");
        Ok(Self(text))
    }

    /// Fails if they are not these any more.
    pub fn unchanged(&self) -> anyhow::Result<()> {
        let now = Self::read()?;
        ensure!(*self == now, "settings of the GPUs ({FIELDS}) were\n{}\nand are\n{}", self.0, now.0);
        Ok(())
    }
}
