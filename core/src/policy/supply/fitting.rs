//! The smallest profiles that cover a request.

use super::Supply;
use super::gpu::GpuSupply;
use crate::mig::Profile;
use crate::packing::Asked;
use crate::request::GpuSelection;
use crate::units::{ComputePercent, SizeGb};
use std::sync::Arc;

impl Supply {
    /// The smallest plain profile that covers the request, for each sort of GPU on managed nodes that the pod may have.
    /// Each profile is returned once, ordered by memory and then by compute.
    #[must_use]
    pub fn fitting_profiles(&self, asked: &Asked, gpus: &GpuSelection) -> Vec<Profile> {
        let fitting = |gpu: &Arc<GpuSupply>| {
            let most = gpu.profiles.iter().map(|(profile, _)| profile.compute()).max().unwrap_or_default();
            let fits = gpu.profiles.iter().filter(|(profile, real)| {
                profile.is_plain()
                    && profile.size() >= asked.size
                    && asked.memory.is_none_or(|memory| *real >= memory)
                    && asked.compute.is_none_or(|compute| has_compute(*profile, most, compute))
            });
            fits.map(|(profile, _)| *profile).min_by_key(smallest)
        };
        let mut profiles: Vec<Profile> = self.admitted(gpus).iter().filter_map(fitting).collect();
        profiles.sort_unstable_by_key(smallest);
        profiles.dedup();
        profiles
    }
}

/// The order of profiles: the least memory first, then the least compute.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "iterators pass what they compare by reference")]
pub(in crate::policy) fn smallest(profile: &Profile) -> (SizeGb, u8) {
    (profile.size(), profile.compute())
}

/// Whether `profile` has this share of compute on a GPU whose largest profile has `most` compute slices.
#[must_use]
pub fn has_compute(profile: Profile, most: u8, compute: ComputePercent) -> bool {
    u32::from(profile.compute()) * 100 >= u32::from(compute.get()) * u32::from(most)
}
