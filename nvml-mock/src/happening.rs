//! Events that happen to GPUs once, listed in the control file: XID errors, memory errors, resets.
//!
//! Each has an id. The state keeps the ids of those that have taken effect forever, so a repetition needs another id.

use serde::{Deserialize, Serialize};

/// An XID error, which event sets that are registered for critical XIDs receive once each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// Distinguishes it from others, so that each is delivered once.
    pub id: String,
    pub gpu: u32,
    pub xid: u64,
    /// GPU instance id, if only one instance is affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// Compute instance id, if only one instance is affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
}

/// Whether ECC could correct an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EccKind {
    /// A single bit error.
    Corrected,
    /// An error of two bits: the content is lost.
    #[default]
    Uncorrected,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EccLocation {
    /// The GPU's memory, whose bad rows are remapped (on Turing, bad pages are retired).
    #[default]
    Dram,
    /// Caches and registers of the GPU.
    Sram,
}

/// Memory errors of a GPU. Event sets that are registered for single or double bit errors receive them once, and the
/// GPU's counters rise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EccErrors {
    /// Distinguishes them from others, so that each counts once.
    pub id: String,
    pub gpu: u32,
    /// How many errors; 1 if left out.
    #[serde(default = "one")]
    pub count: u64,
    /// Uncorrected errors if left out.
    #[serde(default)]
    pub kind: EccKind,
    /// The GPU's memory if left out.
    #[serde(default)]
    pub location: EccLocation,
    /// GPU instance id, if only one instance is affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// Compute instance id, if only one instance is affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
}

fn one() -> u64 {
    1
}

impl EccErrors {
    /// One uncorrected error in the memory of a GPU.
    #[must_use]
    pub fn double_bit(id: impl Into<String>, gpu: u32) -> EccErrors {
        EccErrors {
            id: id.into(),
            gpu,
            count: 1,
            kind: EccKind::Uncorrected,
            location: EccLocation::Dram,
            gi: None,
            ci: None,
        }
    }
}

/// A GPU reset by an operator (`nvidia-smi --gpu-reset`). That command fails while the GPU is in use, so the reset
/// takes effect once no process is on the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuReset {
    /// Distinguishes it from others, so that each takes effect once.
    pub id: String,
    pub gpu: u32,
}

impl EccErrors {
    /// The key under which the state remembers them.
    pub(crate) fn key(&self) -> String {
        format!("ecc/{}", self.id)
    }
}

impl GpuReset {
    /// The key under which the state remembers it.
    pub(crate) fn key(&self) -> String {
        format!("reset/{}", self.id)
    }
}
