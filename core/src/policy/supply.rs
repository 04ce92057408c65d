//! What the cluster's GPUs can ever serve, however full they are now.

use crate::contract::GpuNodeStatus;
use crate::kind::Kind;
use crate::mig::Profile;
use crate::packing::is_worth_whole;
use crate::units::{MemoryMib, SizeGb};
use std::collections::{BTreeMap, BTreeSet};

/// Profiles and sizes that some GPU of the cluster can serve in its present mode. Empty while no agent has reported.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Supply {
    /// Each profile with the least memory that a GPU gives it.
    profiles: BTreeMap<Profile, MemoryMib>,
    shares: BTreeMap<Kind, SizeGb>,
    /// The sizes of GPUs that can be given as a whole.
    whole: BTreeSet<SizeGb>,
}

impl Supply {
    /// The supply of these nodes.
    #[must_use]
    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a GpuNodeStatus>) -> Self {
        let mut supply = Self::default();
        for gpu in nodes.into_iter().flat_map(|node| &node.gpus) {
            for entry in gpu.profiles.entries().iter().filter(|_| gpu.kinds.contains(&Kind::Mig)) {
                let memory = supply.profiles.entry(entry.profile).or_insert(entry.memory);
                *memory = entry.memory.min(*memory);
            }
            // A share is backed by whole GiB, so a GPU serves what it has of them; a whole one is of nominal size.
            let most = SizeGb(u32::try_from(gpu.memory.0 / 1024).unwrap_or(u32::MAX));
            for kind in gpu.kinds.iter().filter(|kind| matches!(kind, Kind::Mps | Kind::TimeSlicing)) {
                let size = supply.shares.entry(*kind).or_insert(most);
                *size = most.max(*size);
            }
            supply.whole.extend(gpu.kinds.contains(&Kind::Whole).then(|| gpu.memory.nominal()));
        }
        supply
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty() && self.shares.is_empty() && self.whole.is_empty()
    }

    /// The smallest plain profile of at least `size`: least memory, then least compute.
    #[must_use]
    pub fn profile_for(&self, size: SizeGb) -> Option<Profile> {
        let fits = self.profiles.keys().filter(|p| p.is_plain() && p.size() >= size);
        fits.min_by_key(|p| (p.size(), p.compute())).copied()
    }

    /// Whether some GPU offers exactly `profile`.
    #[must_use]
    pub fn has_profile(&self, profile: Profile) -> bool {
        self.profiles.contains_key(&profile)
    }

    /// The memory that an instance of `profile` has at least, where it is known.
    #[must_use]
    pub fn memory_of(&self, profile: Profile) -> Option<MemoryMib> {
        self.profiles.get(&profile).copied()
    }

    /// Whether `size` is worth some GPU as a whole.
    #[must_use]
    pub fn has_whole(&self, size: SizeGb) -> bool {
        self.whole.iter().any(|gpu| is_worth_whole(size, *gpu))
    }

    /// Whether some GPU can hold a share of `size`.
    #[must_use]
    pub fn has_share(&self, kind: Kind, size: SizeGb) -> bool {
        self.shares.get(&kind).is_some_and(|most| *most >= size)
    }

    /// The largest size that some GPU serves by `kind`.
    #[must_use]
    pub fn largest(&self, kind: Kind) -> Option<SizeGb> {
        match kind {
            Kind::Mig => self.profiles.keys().map(|p| p.size()).max(),
            Kind::Whole => self.whole.last().copied(),
            Kind::Mps | Kind::TimeSlicing => self.shares.get(&kind).copied(),
        }
    }
}
