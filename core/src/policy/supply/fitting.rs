//! The smallest profile that has all of what a request needs.

use super::Supply;
use crate::mig::Profile;
use crate::request::GpuSelection;
use crate::units::{ComputePercent, MemoryMib, SizeGb};

impl Supply {
    /// The smallest plain profile of at least `size`, with so much real memory and such a share of its GPU's compute on some
    /// GPU that the pod may have: least memory, then least compute.
    #[must_use]
    pub fn fitting_profile(
        &self,
        size: SizeGb,
        memory: Option<MemoryMib>,
        compute: Option<ComputePercent>,
        gpus: &GpuSelection,
    ) -> Option<Profile> {
        let admitted = self.admitted(gpus);
        let fitting = admitted.iter().flat_map(|(gpu, _)| {
            let most = gpu.profiles.iter().map(|(profile, _)| profile.compute()).max().unwrap_or(1);
            let fits = move |(profile, real): &(Profile, MemoryMib)| {
                profile.is_plain()
                    && profile.size() >= size
                    && memory.is_none_or(|memory| *real >= memory)
                    && compute.is_none_or(|compute| has_compute(*profile, most, compute))
            };
            gpu.profiles.iter().copied().filter(fits).map(|(profile, _)| profile)
        });
        fitting.min_by_key(|profile| (profile.size(), profile.compute()))
    }
}

/// Whether `profile` has this share of the compute of a GPU whose largest profile has `most` slices.
#[must_use]
pub fn has_compute(profile: Profile, most: u8, compute: ComputePercent) -> bool {
    u32::from(profile.compute()) * 100 >= u32::from(compute.get()) * u32::from(most)
}
