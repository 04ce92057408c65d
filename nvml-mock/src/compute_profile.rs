//! The compute instance profiles inside one GPU instance. Data only.
//!
//! On Hopper a `1g` instance with double memory has two one-slice profiles: id 0 with the multiprocessors of a plain
//! `1g`, and id 7 (`1_SLICE_REV1`) with all of the instance's. `nvidia-smi mig -C` takes id 7 there. Blackwells whose
//! `1g` with double memory has more multiprocessors are assumed to do the same. The REV1 entries that Hopper may list
//! inside larger instances are left out, because their counts are unknown.

use crate::model::Model;
use crate::profile::Profile;

/// The value of `NVML_COMPUTE_INSTANCE_PROFILE_COUNT` in headers that have `7_SLICE_NVL`.
pub(crate) const COMPUTE_PROFILE_INDEX_COUNT: u32 = 9;
/// Index and id of `NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1`.
const ONE_SLICE_REV1: u32 = 7;

/// One compute instance profile. Its index and its id are the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputeProfile {
    pub id: u32,
    pub slices: u32,
    pub max_instances: u32,
    pub starts: &'static [u32],
    pub multiprocessors: u32,
}

/// Slices and starts that a GPU instance with this many compute slices offers (`nvidia-smi mig -lcip`, `-lcipp`).
fn offered(compute_slices: u32) -> &'static [(u32, &'static [u32])] {
    match compute_slices {
        1 => &[(1, &[0])],
        2 => &[(1, &[0, 1]), (2, &[0])],
        3 => &[(1, &[0, 1, 2]), (2, &[0]), (3, &[0])],
        4 => &[(1, &[0, 1, 2, 3]), (2, &[0, 2]), (4, &[0])],
        7 => &[(1, &[0, 1, 2, 3, 4, 5, 6]), (2, &[0, 2, 4]), (3, &[0, 4]), (4, &[0]), (7, &[0])],
        _ => &[],
    }
}

/// The value of `NVML_COMPUTE_INSTANCE_PROFILE_*` for a slice count.
fn id_of(slices: u32) -> u32 {
    match slices {
        1 => 0,
        2 => 1,
        3 => 2,
        4 => 3,
        _ => 4,
    }
}

/// The compute instance profiles of a GPU instance of `gpu_profile` on `model`.
pub(crate) fn compute_profiles(model: Model, gpu_profile: &Profile) -> Vec<ComputeProfile> {
    let per_slice = model.profiles().iter().map(|profile| profile.multiprocessors).min().unwrap_or(0);
    let rev1 = gpu_profile.compute_slices == 1 && gpu_profile.multiprocessors > per_slice;
    let mut found: Vec<ComputeProfile> = offered(gpu_profile.compute_slices)
        .iter()
        .map(|&(slices, starts)| ComputeProfile {
            id: id_of(slices),
            slices,
            max_instances: u32::try_from(starts.len()).unwrap_or(u32::MAX),
            starts,
            multiprocessors: if slices == gpu_profile.compute_slices && !rev1 {
                gpu_profile.multiprocessors
            } else {
                per_slice * slices
            },
        })
        .collect();
    if rev1 {
        let multiprocessors = gpu_profile.multiprocessors;
        found.push(ComputeProfile {
            id: ONE_SLICE_REV1,
            slices: 1,
            max_instances: 1,
            starts: &[0],
            multiprocessors,
        });
    }
    found
}

/// A name like `2c.4g.40gb`, or only `4g.40gb` if it takes all slices of its GPU instance.
pub(crate) fn compute_name(gpu_profile: &Profile, slices: u32) -> String {
    if slices == gpu_profile.compute_slices {
        gpu_profile.name.clone()
    } else {
        format!("{slices}c.{}", gpu_profile.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(model: Model, name: &str) -> Vec<(u32, u32, u32, u32)> {
        let profile = model.profile_named(name).unwrap();
        compute_profiles(model, profile)
            .iter()
            .map(|p| (p.id, p.slices, p.max_instances, p.multiprocessors))
            .collect()
    }

    #[test]
    fn a_gpu_instance_offers_what_lcip_lists() {
        assert_eq!(listed(Model::A100Gb40, "1g.5gb"), [(0, 1, 1, 14)]);
        assert_eq!(listed(Model::A100Gb40, "3g.20gb"), [(0, 1, 3, 14), (1, 2, 1, 28), (2, 3, 1, 42)]);
        assert_eq!(listed(Model::A100Gb40, "4g.20gb"), [(0, 1, 4, 14), (1, 2, 2, 28), (3, 4, 1, 56)]);
        let seven: Vec<u32> = listed(Model::H200, "7g.141gb").iter().map(|row| row.0).collect();
        assert_eq!(seven, [0, 1, 2, 3, 4]);
        assert_eq!(listed(Model::A30, "4g.24gb").len(), 3);
    }

    #[test]
    fn hopper_gives_a_double_memory_slice_a_second_profile_with_all_its_multiprocessors() {
        assert_eq!(listed(Model::H100, "1g.20gb"), [(0, 1, 1, 16), (7, 1, 1, 26)]);
        assert_eq!(listed(Model::A100Gb80, "1g.20gb"), [(0, 1, 1, 14)]);
    }

    #[test]
    fn only_a_partial_compute_instance_names_its_slices() {
        let profile = Model::H100.profile_named("4g.40gb").unwrap();
        assert_eq!(compute_name(profile, 4), "4g.40gb");
        assert_eq!(compute_name(profile, 2), "2c.4g.40gb");
    }
}
