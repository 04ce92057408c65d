//! Memory errors that a GPU has counted. Volatile counts end with a reset or a boot, aggregate ones never.

use serde::{Deserialize, Serialize};

use crate::happening::{EccErrors, EccKind, EccLocation};
use crate::state::GpuState;

/// Errors of one location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Those that ECC could mend.
    pub corrected: u64,
    /// Those that it could not.
    pub uncorrected: u64,
}

impl EccCounts {
    /// The count of one kind.
    #[must_use]
    pub fn of(&self, kind: EccKind) -> u64 {
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

/// Errors of all locations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccMemory {
    /// The GPU's memory.
    pub dram: EccCounts,
    /// Caches and registers.
    pub sram: EccCounts,
}

impl EccMemory {
    /// The counts of one location.
    #[must_use]
    pub fn at(&self, location: EccLocation) -> EccCounts {
        match location {
            EccLocation::Dram => self.dram,
            EccLocation::Sram => self.sram,
        }
    }

    /// The errors of one kind everywhere.
    #[must_use]
    pub fn total(&self, kind: EccKind) -> u64 {
        self.dram.of(kind).saturating_add(self.sram.of(kind))
    }

    fn add(&mut self, errors: &EccErrors) {
        let counts = match errors.location {
            EccLocation::Dram => &mut self.dram,
            EccLocation::Sram => &mut self.sram,
        };
        counts.add(errors.kind, errors.count);
    }
}

/// What a GPU has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccState {
    /// Since the last reset or boot.
    pub volatile: EccMemory,
    /// In the board's life.
    pub aggregate: EccMemory,
    /// Bad memory waits for a reset or a boot to be remapped, or retired.
    pub remap_pending: bool,
}

impl EccState {
    /// Rows remapped, or pages retired, for errors that could not be corrected: one for each, those that wait included.
    pub(crate) fn replaced(&self) -> u64 {
        self.aggregate.dram.uncorrected
    }

    /// What a reset and a boot do.
    pub(crate) fn restart(&mut self) {
        self.volatile = EccMemory::default();
        self.remap_pending = false;
    }
}

impl GpuState {
    /// Counts errors.
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
