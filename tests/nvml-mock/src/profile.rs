//! GPU instance profiles of each model: ids, sizes, places, engines, names. Data only; rules.rs applies them.
//!
//! NVML has two numbers for a profile: the *index* that one walks (`NVML_GPU_INSTANCE_PROFILE_*`) and the *id*
//! that creates (19, 14, 9, ... on seven-slice GPUs). Ids mean other things on other GPUs: 5 is 4g on an A100
//! and 2g on an A30.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::model::Model;

/// `NVML_GPU_INSTANCE_PROFILE_COUNT` of driver 580.159.04: an index from here on is an invalid argument, a lower
/// one without a profile is not supported.
pub(crate) const PROFILE_INDEX_COUNT: u32 = 17;

/// Engines of an instance, in the words of NVML's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Engines {
    pub copy: u32,
    pub decoder: u32,
    pub jpeg: u32,
    pub ofa: u32,
}

/// One GPU instance profile of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The index that `nvmlDeviceGetGpuInstanceProfileInfo` takes.
    pub index: u32,
    /// The id that `nvmlDeviceCreateGpuInstance` takes.
    pub id: u32,
    /// Most instances of this profile on one GPU.
    pub max_instances: u32,
    /// Compute slices it takes.
    pub compute_slices: u32,
    /// Where it may start on the memory-slice axis.
    pub starts: &'static [u32],
    /// Memory slices it covers.
    pub memory_slices: u32,
    /// Memory it gives, in MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors it gives.
    pub multiprocessors: u32,
    /// It carries the media extension, of which a GPU has one.
    pub media_extension: bool,
    /// Name as the driver spells it without its leading `MIG `, such as `1g.10gb+me`.
    pub name: String,
    pub(crate) engines: Engines,
}

/// The part of a profile that all GPUs of one family share.
struct Shape {
    index: u32,
    id: u32,
    max: u32,
    compute: u32,
    starts: &'static [u32],
    size: u32,
    media: bool,
}

/// Seven compute slices over eight memory slices: A100, H100, H200 (`nvidia-smi mig -lgip`, `-lgipp`).
#[rustfmt::skip]
const SEVEN: [Shape; 7] = [
    Shape { index: 0, id: 19, max: 7, compute: 1, starts: &[0, 1, 2, 3, 4, 5, 6], size: 1, media: false },
    Shape { index: 7, id: 20, max: 1, compute: 1, starts: &[0, 1, 2, 3, 4, 5, 6], size: 1, media: true },
    Shape { index: 9, id: 15, max: 4, compute: 1, starts: &[0, 2, 4, 6], size: 2, media: false },
    Shape { index: 1, id: 14, max: 3, compute: 2, starts: &[0, 2, 4], size: 2, media: false },
    Shape { index: 2, id: 9, max: 2, compute: 3, starts: &[0, 4], size: 4, media: false },
    Shape { index: 3, id: 5, max: 1, compute: 4, starts: &[0], size: 4, media: false },
    Shape { index: 4, id: 0, max: 1, compute: 7, starts: &[0], size: 8, media: false },
];

/// The A30: four slices, ids of its own.
#[rustfmt::skip]
const FOUR: [Shape; 5] = [
    Shape { index: 0, id: 14, max: 4, compute: 1, starts: &[0, 1, 2, 3], size: 1, media: false },
    Shape { index: 7, id: 21, max: 1, compute: 1, starts: &[0, 1, 2, 3], size: 1, media: true },
    Shape { index: 1, id: 5, max: 2, compute: 2, starts: &[0, 2], size: 2, media: false },
    Shape { index: 8, id: 6, max: 1, compute: 2, starts: &[0, 2], size: 2, media: true },
    Shape { index: 3, id: 0, max: 1, compute: 4, starts: &[0], size: 4, media: false },
];

/// Memory in MiB, multiprocessors, then copy, decoder, JPEG and OFA engines: one row per shape, in its order.
type Sizes = (u64, u32, [u32; 4]);

/// `lgip` of an A100-SXM4-40GB; the double-memory row needs driver 525.
#[rustfmt::skip]
const A100_40: [Sizes; 7] = [
    (4864, 14, [1, 0, 0, 0]), (4864, 14, [1, 1, 1, 1]), (9856, 14, [1, 1, 0, 0]), (9856, 28, [2, 1, 0, 0]),
    (19968, 42, [3, 2, 0, 0]), (19968, 56, [4, 2, 0, 0]), (40192, 98, [7, 5, 1, 1]),
];
/// `lgip` of an A100-SXM4-80GB; its 7g moved between 80384 and 80896 MiB with the driver.
#[rustfmt::skip]
const A100_80: [Sizes; 7] = [
    (9728, 14, [1, 0, 0, 0]), (9728, 14, [1, 1, 1, 1]), (19968, 14, [1, 1, 0, 0]), (19968, 28, [2, 1, 0, 0]),
    (40192, 42, [3, 2, 0, 0]), (40192, 56, [4, 2, 0, 0]), (80384, 98, [7, 5, 1, 1]),
];
/// `lgip` of an H100 80GB HBM3 (9.75, 19.62, 39.50 and 79.25 GiB).
#[rustfmt::skip]
const H100: [Sizes; 7] = [
    (9984, 16, [1, 1, 1, 0]), (9984, 16, [1, 1, 1, 1]), (20096, 26, [1, 1, 1, 0]), (20096, 32, [2, 2, 2, 0]),
    (40448, 60, [3, 3, 3, 0]), (40448, 64, [4, 4, 4, 0]), (81152, 132, [8, 7, 7, 1]),
];
/// Read through NVML from an H200 under driver 580.159.04, every number.
#[rustfmt::skip]
const H200: [Sizes; 7] = [
    (16384, 16, [1, 1, 1, 0]), (16384, 16, [1, 1, 1, 1]), (33280, 26, [1, 1, 1, 0]), (33280, 32, [2, 2, 2, 0]),
    (71424, 60, [3, 3, 3, 0]), (71424, 64, [4, 4, 4, 0]), (143_360, 132, [8, 7, 7, 1]),
];
/// `lgip` of an A30 (5.81, 11.69 and 23.44 GiB).
#[rustfmt::skip]
const A30: [Sizes; 5] = [
    (5952, 14, [1, 0, 0, 0]), (5952, 14, [1, 1, 1, 1]), (11968, 28, [2, 2, 0, 0]), (11968, 28, [2, 2, 1, 1]),
    (24000, 56, [4, 4, 1, 1]),
];

static PROFILES: LazyLock<BTreeMap<Model, Vec<Profile>>> = LazyLock::new(|| {
    Model::ALL
        .into_iter()
        .map(|model| {
            let profiles = match model {
                Model::A100Gb40 => table(model, &SEVEN, &A100_40),
                Model::A100Gb80 => table(model, &SEVEN, &A100_80),
                Model::H100 => table(model, &SEVEN, &H100),
                Model::H200 => table(model, &SEVEN, &H200),
                Model::A30 => table(model, &FOUR, &A30),
                Model::A10G | Model::L40S | Model::L4 | Model::T4 => Vec::new(),
            };
            (model, profiles)
        })
        .collect()
});

fn table(model: Model, shapes: &[Shape], sizes: &[Sizes]) -> Vec<Profile> {
    shapes.iter().zip(sizes).map(|(shape, sizes)| profile(model, shape, sizes)).collect()
}

fn profile(model: Model, shape: &Shape, &(memory_mib, multiprocessors, engines): &Sizes) -> Profile {
    let [copy, decoder, jpeg, ofa] = engines;
    let suffix = if shape.media { "+me" } else { "" };
    Profile {
        index: shape.index,
        id: shape.id,
        max_instances: shape.max,
        compute_slices: shape.compute,
        starts: shape.starts,
        memory_slices: shape.size,
        memory_mib,
        multiprocessors,
        media_extension: shape.media,
        name: format!("{}g.{}gb{suffix}", shape.compute, nominal_gb(memory_mib, model.total_mib())),
        engines: Engines { copy, decoder, jpeg, ofa },
    }
}

/// The size in a profile's name: its memory rounded up to eighths of the GPU, times the GPU's GiB rounded up,
/// rounded half up. Holds for every published table.
fn nominal_gb(memory_mib: u64, total_mib: u64) -> u64 {
    let eighths = (memory_mib * 8).div_ceil(total_mib);
    let whole_gib = total_mib.div_ceil(1024);
    (2 * eighths * whole_gib + 8) / 16
}

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

    /// Length of the memory-slice axis: 8, or 4 on an A30; 0 without MIG.
    #[must_use]
    pub fn memory_slices(self) -> u32 {
        self.profiles().iter().map(|profile| profile.memory_slices).max().unwrap_or(0)
    }

    /// Compute slices to give away: 7, or 4 on an A30; 0 without MIG. Also the most MIG devices at a time.
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
