//! Memory errors that a GPU has counted. Volatile counts end with a reset or a boot, aggregate ones never.

use serde::{Deserialize, Serialize};

use crate::happening::{EccErrors, EccKind, EccLocation};
use crate::state::GpuState;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    pub corrected: u64,
    pub uncorrected: u64,
}

impl EccCounts {
    #[must_use]
    pub fn count(&self, kind: EccKind) -> u64 {
        match kind {
            EccKind::Corrected => self.corrected,
            EccKind::Uncorrected => self.uncorrected,
        }
    }

    fn add(&mut self, kind: EccKind, count: u64) {
        let counter = match kind {
            EccKind::Corrected => &mut self.corrected,
            EccKind::Uncorrected => &mut self.uncorrected,
        };
        *counter = counter.saturating_add(count);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccMemory {
    pub dram: EccCounts,
    /// Errors in caches and registers.
    pub sram: EccCounts,
}

impl EccMemory {
    #[must_use]
    pub fn counts(&self, location: EccLocation) -> EccCounts {
        match location {
            EccLocation::Dram => self.dram,
            EccLocation::Sram => self.sram,
        }
    }

    /// The errors of one kind in all locations.
    #[must_use]
    pub fn total(&self, kind: EccKind) -> u64 {
        self.dram.count(kind).saturating_add(self.sram.count(kind))
    }

    fn add(&mut self, errors: &EccErrors) {
        let counts = match errors.location {
            EccLocation::Dram => &mut self.dram,
            EccLocation::Sram => &mut self.sram,
        };
        counts.add(errors.kind, errors.count);
    }
}

/// All error counts of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccState {
    /// Counts since the last reset or boot.
    pub volatile: EccMemory,
    /// Counts over the board's lifetime.
    pub aggregate: EccMemory,
    /// Whether bad memory waits for a reset or a boot to be remapped, or retired.
    pub remap_pending: bool,
}

impl EccState {
    /// Rows that are remapped, or pages that are retired, for uncorrected errors: one for each error, including pending
    /// ones.
    pub(crate) fn replaced(&self) -> u64 {
        self.aggregate.dram.uncorrected
    }

    /// Applies the effects of a reset or a boot.
    pub(crate) fn restart(&mut self) {
        self.volatile = EccMemory::default();
        self.remap_pending = false;
    }
}

impl GpuState {
    pub(crate) fn suffer(&mut self, errors: &EccErrors) {
        self.ecc.volatile.add(errors);
        self.ecc.aggregate.add(errors);
        match (errors.location, errors.kind) {
            (EccLocation::Dram, EccKind::Uncorrected) => self.ecc.remap_pending = true,
            (EccLocation::Sram, EccKind::Uncorrected) => {
                let hit = self.instances.iter_mut().find(|instance| Some(instance.id) == errors.gi);
                if let Some(instance) = hit {
                    instance.sram_uncorrected = instance.sram_uncorrected.saturating_add(errors.count);
                }
            }
            (_, EccKind::Corrected) => {}
        }
    }
}
