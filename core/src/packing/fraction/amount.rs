//! Types for amounts of CPU and of a GPU, so that cores are never added to shares.

use crate::units::MemoryMib;

/// Thousandths of a core, as Kubernetes counts CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuMilli(pub u32);

/// Thousandths of one GPU. A share by memory counts as that part of the GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuMilli(pub u16);

impl GpuMilli {
    /// All thousandths of one GPU.
    pub const WHOLE: Self = Self(1000);
}

/// Thousandths of a GPU that a tenant keeps busy on average: its duty times the part of the GPU that a busy copy needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Busy(pub u16);

impl Busy {
    /// Unknown: the tenant is admitted by its memory alone.
    pub const UNKNOWN: Self = Self(0);
}

#[expect(clippy::cast_precision_loss, reason = "sums of a fleet are far below 2^52")]
pub(super) fn real(sum: u64) -> f64 {
    sum as f64
}

pub(super) fn mib(memory: MemoryMib) -> f64 {
    real(memory.0)
}
