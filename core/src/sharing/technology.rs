//! How one tenant gets at the GPU, as far as it decides about its speed.

use super::{GpuPart, SwitchingCost};
use crate::kind::Kind;
use crate::mig::{MigTable, Profile};
use crate::units::ComputePercent;
use serde::{Deserialize, Serialize};

/// A way to share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Technology {
    /// The GPU alone.
    Whole,
    /// A MIG instance. Neighbours are not felt.
    Mig {
        /// The instance's profile.
        profile: Profile,
        /// The part of the GPU that it has.
        part: GpuPart,
    },
    /// Side by side behind an MPS daemon.
    Mps {
        /// The part of the GPU's threads that the tenant may use; absent for all of them. A share's limit follows its
        /// memory unless the pod asks for another (`kerf.dev/compute`), so absent stands for an asked 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<ComputePercent>,
    },
    /// In turns.
    TimeSlicing {
        /// What the turns cost on this GPU model.
        #[serde(default)]
        switching: SwitchingCost,
    },
}

impl Technology {
    /// MPS without a limit of threads.
    pub const MPS: Self = Self::Mps { limit: None };

    /// An instance of `profile` on a GPU with this table; `None` if the table has no such profile.
    ///
    /// Its part of the GPU is the smaller one of its part of the compute slices and of the memory slices. That is 1/8 for
    /// a `1g.10gb`, which has 14 of an A100's 108 multiprocessors and 16 of an H200's 132.
    #[must_use]
    pub fn mig(table: &MigTable, profile: Profile) -> Option<Self> {
        let entry = table.entry(profile)?;
        let compute = f64::from(profile.compute()) / f64::from(table.compute());
        let memory = f64::from(entry.size) / f64::from(table.axis());
        GpuPart::new(compute.min(memory)).map(|part| Self::Mig { profile, part })
    }

    /// The kind of slice.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Whole => Kind::Whole,
            Self::Mig { .. } => Kind::Mig,
            Self::Mps { .. } => Kind::Mps,
            Self::TimeSlicing { .. } => Kind::TimeSlicing,
        }
    }

    /// Whether a tenant of this technology feels one of the other: only those who share without a fence, in the same way.
    pub(super) fn feels(self, other: Self) -> bool {
        self.kind() == other.kind() && matches!(self, Self::Mps { .. } | Self::TimeSlicing { .. })
    }
}
