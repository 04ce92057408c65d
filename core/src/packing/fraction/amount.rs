//! Amounts of CPU and of one GPU as types, so that a core is never added to a share.

use crate::units::MemoryMib;

/// Thousandths of a core, as Kubernetes counts CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuMilli(pub u32);

/// Thousandths of one GPU: of its memory, where a share is asked for by memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuMilli(pub u16);

impl GpuMilli {
    /// A whole GPU.
    pub const WHOLE: Self = Self(1000);
}

/// Thousandths of a GPU that a tenant keeps busy on the mean: its duty times what a busy copy really needs of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Busy(pub u16);

impl Busy {
    /// Nothing is known: the tenant is admitted by its memory alone.
    pub const UNKNOWN: Self = Self(0);

    /// From the part of the time in which requests are served, in thousandths, when it was not measured how much of the
    /// GPU that needs: one half, above the 0.44 (A100) and 0.25 to 0.35 (H200) that were measured under MPS.
    #[must_use]
    pub fn of_duty(duty: u16) -> Self {
        Self(duty / 2)
    }
}

/// A sum as a number with fractions.
#[expect(clippy::cast_precision_loss, reason = "sums of a fleet are far below 2^52")]
pub(super) fn real(sum: u64) -> f64 {
    sum as f64
}

/// Memory as a number with fractions.
pub(super) fn mib(memory: MemoryMib) -> f64 {
    real(memory.0)
}
