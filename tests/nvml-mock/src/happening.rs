//! What happens to GPUs once, told by the control file: XID errors, memory errors, resets.
//!
//! Each has an id. The state keeps the ids of what has taken effect, for good: a second time needs a second id.

use serde::{Deserialize, Serialize};

/// An XID error that event sets registered for critical XIDs receive once each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// Tells it from other ones, so that each is delivered once.
    pub id: String,
    /// Index of the GPU.
    pub gpu: u32,
    /// The XID number.
    pub xid: u64,
    /// GPU instance id, if only one is hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// Compute instance id, if only one is hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<u32>,
}

/// Whether ECC could mend an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EccKind {
    /// A single bit.
    Corrected,
    /// Two bits: what was there is lost.
    #[default]
    Uncorrected,
}

/// Where an error was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EccLocation {
    /// The GPU's memory, whose bad rows are remapped (whose bad pages are retired, on Turing).
    #[default]
    Dram,
    /// Caches and registers.
    Sram,
}

/// Memory errors of a GPU. Event sets registered for single or double bit errors receive them once, and the GPU's
/// counters rise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EccErrors {
    /// Tells them from other ones, so that each counts once.
    pub id: String,
    /// Index of the GPU.
    pub gpu: u32,
    /// How many errors; 1 when left out.
    #[serde(default = "one")]
    pub count: u64,
    /// Uncorrected when left out.
    #[serde(default)]
    pub kind: EccKind,
    /// The GPU's memory when left out.
    #[serde(default)]
    pub location: EccLocation,
    /// GPU instance id, if only one is hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gi: Option<u32>,
    /// Compute instance id, if only one is hit.
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

/// A GPU reset by an operator (`nvidia-smi --gpu-reset`). As that refuses while the GPU is in use, it takes effect once
/// no process is on the GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuReset {
    /// Tells it from other ones, so that each takes effect once.
    pub id: String,
    /// Index of the GPU.
    pub gpu: u32,
}

impl EccErrors {
    /// What the state knows them by.
    pub(crate) fn key(&self) -> String {
        format!("ecc/{}", self.id)
    }
}

impl GpuReset {
    /// What the state knows it by.
    pub(crate) fn key(&self) -> String {
        format!("reset/{}", self.id)
    }
}
