//! The GPU instance profiles of each model: ids, sizes, places, engines, names. tables.rs has the numbers, and rules.rs
//! applies them.
//!
//! NVML has two numbers for a profile: the *index* for a walk over all (`NVML_GPU_INSTANCE_PROFILE_*`) and the *id* for
//! creation (19, 14, 9, ... on seven-slice GPUs). Ids differ between GPUs: 5 is 4g on an A100 and 2g on an A30.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::model::Model;
use crate::tables;

/// `NVML_GPU_INSTANCE_PROFILE_COUNT` of driver 580.159.04. An index from here on is an invalid argument; a lower one
/// without a profile is not supported.
pub(crate) const PROFILE_INDEX_COUNT: u32 = 17;

/// Engines of an instance, with the names in NVML's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Engines {
    pub copy: u32,
    pub decoder: u32,
    pub encoder: u32,
    pub jpeg: u32,
    pub ofa: u32,
}

/// One GPU instance profile of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The index for `nvmlDeviceGetGpuInstanceProfileInfo`.
    pub index: u32,
    /// The id for `nvmlDeviceCreateGpuInstance`.
    pub id: u32,
    /// The maximum number of instances of this profile on one GPU.
    pub max_instances: u32,
    /// The number of compute slices that it takes.
    pub compute_slices: u32,
    /// Where it may start on the memory-slice axis.
    pub starts: &'static [u32],
    /// The number of memory slices that it covers.
    pub memory_slices: u32,
    /// The memory of an instance, in MiB.
    pub memory_mib: u64,
    /// The streaming multiprocessors of an instance.
    pub multiprocessors: u32,
    /// Whether it has the media extension, or all media engines, which only one instance of a GPU can have.
    pub media_extension: bool,
    /// The driver's name without the leading `MIG `, such as `1g.10gb+me`.
    pub name: String,
    pub(crate) engines: Engines,
}

/// The size in a profile's name: its memory rounded up to eighths of the GPU, times the GPU's GiB rounded up, rounded
/// half up. This holds for every published table.
pub(crate) fn nominal_gb(memory_mib: u64, total_mib: u64) -> u64 {
    let eighths = (memory_mib * 8).div_ceil(total_mib);
    let whole_gib = total_mib.div_ceil(1024);
    (2 * eighths * whole_gib + 8) / 16
}

static PROFILES: LazyLock<BTreeMap<Model, Vec<Profile>>> =
    LazyLock::new(|| Model::ALL.into_iter().map(|model| (model, tables::profiles_of(model))).collect());

impl Model {
    /// The GPU instance profiles of the model; empty without MIG.
    #[must_use]
    pub fn profiles(self) -> &'static [Profile] {
        PROFILES.get(&self).map_or(&[], Vec::as_slice)
    }

    /// The profile of that id, if the model has it.
    #[must_use]
    pub fn profile(self, id: u32) -> Option<&'static Profile> {
        self.profiles().iter().find(|profile| profile.id == id)
    }

    /// The profile of that name (`1g.10gb`), if the model has it.
    #[must_use]
    pub fn profile_named(self, name: &str) -> Option<&'static Profile> {
        self.profiles().iter().find(|profile| profile.name == name)
    }

    /// Length of the memory-slice axis: 8, 4 on an A30, 12 on an RTX PRO 6000; 0 without MIG.
    #[must_use]
    pub fn memory_slices(self) -> u32 {
        self.profiles().iter().map(|profile| profile.memory_slices).max().unwrap_or(0)
    }

    /// The number of compute slices: 7, or 4 on an A30 and an RTX PRO 6000; 0 without MIG. It is also the maximum
    /// number of MIG devices.
    #[must_use]
    pub fn compute_slices(self) -> u32 {
        self.profiles().iter().map(|profile| profile.compute_slices).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(model: Model) -> Vec<(u32, &'static str, u32)> {
        model.profiles().iter().map(|p| (p.id, p.name.as_str(), p.max_instances)).collect()
    }

    #[test]
    fn names_are_those_that_the_drivers_print() {
        let seven = |sizes: [&'static str; 7]| {
            [(19, sizes[0], 7), (20, sizes[1], 1), (15, sizes[2], 4), (14, sizes[3], 3)]
                .into_iter()
                .chain([(9, sizes[4], 2), (5, sizes[5], 1), (0, sizes[6], 1)])
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(Model::A100Gb40),
            seven(["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"])
        );
        let eighty = seven(["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]);
        assert_eq!(names(Model::A100Gb80), eighty);
        assert_eq!(names(Model::H100), eighty);
        assert_eq!(
            names(Model::H200),
            seven(["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"])
        );
        assert_eq!(
            names(Model::H100Nvl),
            seven(["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"])
        );
        let of_96 = seven(["1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"]);
        for model in [Model::H100Gb96, Model::GH200Gb96, Model::H20Gb96] {
            assert_eq!(names(model), of_96, "{model:?}");
        }
        assert_eq!(names(Model::H20Gb141), names(Model::H200));
        assert_eq!(
            names(Model::GH200Gb144),
            seven(["1g.18gb", "1g.18gb+me", "1g.36gb", "2g.36gb", "3g.72gb", "4g.72gb", "7g.144gb"])
        );
        assert_eq!(
            names(Model::B200),
            seven(["1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"])
        );
        assert_eq!(
            names(Model::GB200),
            seven(["1g.23gb", "1g.23gb+me", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"])
        );
        assert_eq!(
            names(Model::B300),
            seven(["1g.34gb", "1g.34gb+me", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"])
        );
        assert_eq!(
            names(Model::GB300),
            seven(["1g.35gb", "1g.35gb+me", "1g.70gb", "2g.70gb", "3g.139gb", "4g.139gb", "7g.278gb"])
        );
        assert_eq!(
            names(Model::RtxPro6000),
            [
                (14, "1g.24gb", 4),
                (21, "1g.24gb+me", 1),
                (47, "1g.24gb+gfx", 4),
                (65, "1g.24gb+me.all", 1),
                (67, "1g.24gb-me", 4),
                (5, "2g.48gb", 2),
                (35, "2g.48gb+gfx", 2),
                (64, "2g.48gb+me.all", 1),
                (66, "2g.48gb-me", 2),
                (0, "4g.96gb", 1),
                (32, "4g.96gb+gfx", 1)
            ]
        );
        assert_eq!(
            names(Model::A30),
            [
                (14, "1g.6gb", 4),
                (21, "1g.6gb+me", 1),
                (5, "2g.12gb", 2),
                (6, "2g.12gb+me", 1),
                (0, "4g.24gb", 1)
            ]
        );
    }

    #[test]
    fn a_gpu_without_mig_has_no_profiles_and_no_slices() {
        for model in Model::ALL.into_iter().filter(|model| !model.has_mig()) {
            assert!(model.profiles().is_empty(), "{model:?}");
            assert_eq!((model.memory_slices(), model.compute_slices()), (0, 0), "{model:?}");
        }
    }

    #[test]
    fn every_profile_stays_on_its_axis_and_its_indexes_are_distinct() {
        for model in Model::ALL {
            let mut indexes: Vec<u32> = model.profiles().iter().map(|p| p.index).collect();
            indexes.sort_unstable();
            indexes.dedup();
            assert_eq!(indexes.len(), model.profiles().len(), "{model:?}");
            for profile in model.profiles() {
                assert!(profile.index < PROFILE_INDEX_COUNT);
                assert!(profile.starts.iter().all(|s| s + profile.memory_slices <= model.memory_slices()));
                assert!(profile.memory_mib < model.total_mib());
            }
        }
    }
}
