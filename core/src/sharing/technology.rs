//! The ways in which one tenant uses the GPU, as far as they decide its speed.

use super::{GpuPart, SwitchingCost};
use crate::kind::Kind;
use crate::mig::{MigTable, Profile};
use crate::units::ComputePercent;
use serde::{Deserialize, Serialize};

/// A way to share a GPU, in documents the field `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Technology {
    /// The whole GPU without neighbours.
    Whole,
    /// A MIG instance, which neighbours do not slow down.
    Mig {
        /// The profile of the instance.
        profile: Profile,
        /// The part of the GPU that it has.
        part: GpuPart,
    },
    /// Side by side behind an MPS daemon.
    Mps {
        /// The percentage of the GPU's threads that the tenant may use; absent for all of them. A share's limit follows
        /// its memory unless the pod asks for another one (`kerf.dev/compute`), so absent means that it asks for 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<ComputePercent>,
    },
    /// Tenants take turns by time slicing.
    TimeSlicing {
        /// The cost of turns on this GPU model.
        #[serde(default)]
        switching: SwitchingCost,
    },
}

impl Technology {
    /// MPS without a limit of threads.
    pub const MPS: Self = Self::Mps { limit: None };

    /// An instance of `profile` on a GPU with this table; `None` if the table does not have the profile.
    ///
    /// Its part of the GPU is the smaller of its parts of compute slices and memory slices. That is 1/8 for a
    /// `1g.10gb`, which has 14 of an A100's 108 multiprocessors, and 16 of an H200's 132.
    #[must_use]
    pub fn mig(table: &MigTable, profile: Profile) -> Option<Self> {
        let entry = table.entry(profile)?;
        let compute = f64::from(profile.compute()) / f64::from(table.compute());
        let memory = f64::from(entry.size) / f64::from(table.axis());
        GpuPart::new(compute.min(memory)).map(|part| Self::Mig { profile, part })
    }

    /// The kind of slice that this technology means.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Whole => Kind::Whole,
            Self::Mig { .. } => Kind::Mig,
            Self::Mps { .. } => Kind::Mps,
            Self::TimeSlicing { .. } => Kind::TimeSlicing,
        }
    }

    /// Whether a tenant of this technology is slowed down by one of the other. Only tenants that share in the same way
    /// without isolation are.
    pub(super) fn feels(self, other: Self) -> bool {
        self.kind() == other.kind() && matches!(self, Self::Mps { .. } | Self::TimeSlicing { .. })
    }
}
