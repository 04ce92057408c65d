//! The MIG table of one GPU model: its profiles with their placements, as NVML lists them.

use super::Profile;
use crate::units::MemoryMib;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// NVML's id of a GPU instance profile, as `nvmlDeviceCreateGpuInstanceWithPlacement` takes it. Ids have a meaning only
/// together with the GPU's table: 19 is `1g` on most GPUs, but not on all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GiProfileId(pub u32);

/// The place of a GPU instance on its GPU's axis of memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The first memory slice that it takes.
    pub start: u8,
    /// The number of memory slices that it takes.
    pub size: u8,
}

impl Placement {
    /// The memory slices as bits. 32 bits suffice, because axes have at most 12 slices (RTX PRO 6000).
    #[must_use]
    pub fn mask(self) -> u32 {
        // Values that no GPU has must not overflow a shift.
        let ones = 1_u64.checked_shl(u32::from(self.size)).unwrap_or(0).wrapping_sub(1);
        u32::try_from((ones << self.start.min(31)) & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }

    /// Whether the two have a memory slice in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.mask() & other.mask() != 0
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.size)
    }
}

/// One profile of one GPU model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProfileEntry {
    /// The id that NVML creates instances by.
    pub id: GiProfileId,
    /// The profile's name, as in `1g.10gb`.
    pub profile: Profile,
    /// The memory that an instance really has, in MiB.
    #[serde(rename = "memoryMib")]
    pub memory: MemoryMib,
    /// The number of memory slices that an instance takes.
    pub size: u8,
    /// The memory slices at which an instance may start, ascending.
    pub starts: Vec<u8>,
    /// The number of instances of this profile that a GPU can hold.
    pub max: u8,
}

impl ProfileEntry {
    /// The placements that an instance can have.
    pub fn placements(&self) -> impl Iterator<Item = Placement> + '_ {
        self.starts.iter().map(|start| Placement { start: *start, size: self.size })
    }
}

/// The profiles of one GPU, in NVML's order. Clones share them, because all GPUs of a model have the same.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MigTable {
    entries: Arc<[ProfileEntry]>,
}

impl MigTable {
    /// A table with these entries, in their order.
    #[must_use]
    pub fn new(entries: Vec<ProfileEntry>) -> Self {
        Self { entries: entries.into() }
    }

    /// The entries in NVML's order.
    #[must_use]
    pub fn entries(&self) -> &[ProfileEntry] {
        &self.entries
    }

    /// Whether the table has no profile, as on a GPU whose MIG mode is off.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry of `profile`; `None` if the GPU does not offer it.
    #[must_use]
    pub fn entry(&self, profile: Profile) -> Option<&ProfileEntry> {
        self.entries.iter().find(|e| e.profile == profile)
    }

    /// The number of compute slices of the whole GPU: that of its largest profile.
    #[must_use]
    pub fn compute(&self) -> u8 {
        self.entries.iter().map(|e| e.profile.compute()).max().unwrap_or(0)
    }

    /// The number of memory slices of the whole GPU: that of its largest profile.
    #[must_use]
    pub fn axis(&self) -> u8 {
        self.entries.iter().map(|e| e.size).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_covers_its_slices() {
        assert_eq!(Placement { start: 4, size: 4 }.mask(), 0b1111_0000);
        assert_eq!(Placement { start: 0, size: 12 }.mask(), 0xfff);
        assert_eq!(Placement { start: 0, size: 200 }.mask(), u32::MAX);
        assert_eq!(Placement { start: 200, size: 1 }.mask(), 1 << 31);
        assert!(Placement { start: 2, size: 2 }.overlaps(Placement { start: 3, size: 1 }));
        assert!(!Placement { start: 2, size: 2 }.overlaps(Placement { start: 4, size: 4 }));
    }

    #[test]
    fn a_gpu_without_profiles_has_no_slices() {
        let none = MigTable::new(vec![]);
        assert_eq!((none.compute(), none.axis()), (0, 0));
    }
}
