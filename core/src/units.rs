//! Amounts of GPU memory as types, so that mebibytes are never added to nominal gigabytes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The largest nominal size that a request may name, in GB.
///
/// The largest GPU in NVIDIA's list of MIG-capable parts is the GB300 with 278 GB (MIG user guide, supported profiles).
pub const LARGEST_SIZE: SizeGb = SizeGb(278);

/// An amount of memory in MiB (2^20 bytes), as NVML and MPS count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemoryMib(pub u64);

impl MemoryMib {
    /// Whether the amount is zero MiB.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// The nominal size of a GPU with this much memory: whole GiB, rounded up (81,559 MiB is an "80 GB" GPU).
    #[must_use]
    pub fn nominal(self) -> SizeGb {
        SizeGb(u32::try_from(self.0.div_ceil(1024)).unwrap_or(u32::MAX))
    }

    /// The difference `self - other`, or zero.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::iter::Sum for MemoryMib {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|m| m.0).sum())
    }
}

impl fmt::Display for MemoryMib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}Mi", self.0)
    }
}

/// A nominal size in GB: the N of `gpu-Ngb` and of a MIG profile's name. It means the minimum that the name guarantees,
/// not N GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SizeGb(pub u32);

impl SizeGb {
    /// The request names no size, so any size of the named resource serves it.
    pub const ANY: Self = Self(0);

    /// The memory that a share of this size gets and is accounted with: N GiB.
    #[must_use]
    pub fn share_memory(self) -> MemoryMib {
        MemoryMib(u64::from(self.0) * 1024)
    }
}

impl fmt::Display for SizeGb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GB", self.0)
    }
}

/// A share of a GPU's compute, in percent from 1 to 100, as MPS counts its active threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct ComputePercent(u8);

impl ComputePercent {
    /// All of a GPU's compute.
    pub const ALL: Self = Self(100);

    /// The share; `None` if it is zero or above 100.
    #[must_use]
    pub fn new(percent: u8) -> Option<Self> {
        (1..=100).contains(&percent).then_some(Self(percent))
    }

    /// The share in whole percent.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for ComputePercent {
    type Error = String;

    fn try_from(percent: u8) -> Result<Self, String> {
        Self::new(percent).ok_or_else(|| format!("{percent} percent of a GPU's compute; write 1 to 100"))
    }
}

impl From<ComputePercent> for u8 {
    fn from(share: ComputePercent) -> Self {
        share.0
    }
}

impl fmt::Display for ComputePercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpus_nominal_size_is_its_memory_in_whole_gib_rounded_up() {
        for (mib, gb) in [(81_559, 80), (40_960, 40), (143_771, 141), (24_576, 24), (15_360, 15)] {
            assert_eq!(MemoryMib(mib).nominal(), SizeGb(gb), "{mib} MiB");
        }
    }
}
