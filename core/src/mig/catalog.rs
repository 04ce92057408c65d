//! The GPU models that kerf knows without asking NVML: for planning off a node, for tests and for short names.
//!
//! On a node the table comes from NVML. Memory in MiB is as real GPUs reported it (NVIDIA's MIG user guide and dumps of
//! `nvidia-smi mig -lgip`); it moves by a few MiB with the driver.

use super::{Extras, GiProfileId, MigTable, Profile, ProfileEntry};
use crate::units::{MemoryMib, SizeGb};
use std::collections::BTreeSet;

/// One GPU model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuModel {
    /// The short name that kerf's labels, documents and messages use.
    pub name: &'static str,
    /// A part of the product name that NVML reports.
    pub product: &'static str,
    /// Total memory as NVML reports it.
    pub memory: MemoryMib,
    layout: Layout,
}

/// How a model's memory slices can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// No MIG.
    None,
    /// Seven compute slices on an axis of eight: nominal GB and MiB of 1, 2, 4 and 8 memory slices.
    Seven([(u32, u64); 4]),
    /// A30: four compute slices on an axis of four: nominal GB and MiB of 1, 2 and 4 memory slices.
    Four([(u32, u64); 3]),
}

const fn model(name: &'static str, product: &'static str, memory: u64, layout: Layout) -> GpuModel {
    GpuModel { name, product, memory: MemoryMib(memory), layout }
}

/// All models. More specific product names come first.
pub const MODELS: [GpuModel; 9] = [
    model(
        "H100-80GB",
        "H100 80GB",
        81_559,
        Layout::Seven([(10, 9_984), (20, 20_090), (40, 40_448), (80, 81_152)]),
    ),
    model(
        "H200-141GB",
        "H200",
        143_771,
        Layout::Seven([(18, 16_384), (35, 33_280), (71, 71_424), (141, 143_360)]),
    ),
    model(
        "A100-40GB",
        "A100-SXM4-40GB",
        40_960,
        Layout::Seven([(5, 4_864), (10, 9_856), (20, 19_968), (40, 40_192)]),
    ),
    model(
        "A100-80GB",
        "A100-SXM4-80GB",
        81_920,
        Layout::Seven([(10, 9_728), (20, 19_968), (40, 40_192), (80, 80_896)]),
    ),
    model("A30-24GB", "A30", 24_576, Layout::Four([(6, 5_952), (12, 11_968), (24, 24_064)])),
    model("A10G-24GB", "A10G", 23_028, Layout::None),
    model("L40S-48GB", "L40S", 46_068, Layout::None),
    model("L4-24GB", "L4", 23_034, Layout::None),
    model("T4-16GB", "T4", 15_360, Layout::None),
];

/// The model of this short name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static GpuModel> {
    MODELS.iter().find(|m| m.name == name)
}

/// Every profile that some model has, each once.
#[must_use]
pub fn profiles() -> BTreeSet<Profile> {
    let tables = MODELS.iter().filter_map(GpuModel::mig_table);
    tables.flat_map(|table| table.entries().iter().map(|e| e.profile).collect::<Vec<_>>()).collect()
}

/// The short name of a GPU that NVML calls `product`: the catalog's where the model is known, else the product name
/// without its brand and with dashes for spaces, so that it can be a label's value.
#[must_use]
pub fn short_name(product: &str) -> String {
    let words = |text: &str| format!(" {} ", text.replace('-', " "));
    let known = MODELS.iter().find(|m| words(product).contains(&words(m.product)));
    known.map_or_else(
        || {
            let plain = product.trim_start_matches("NVIDIA ").trim_start_matches("Tesla ");
            plain.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
        },
        |m| m.name.to_owned(),
    )
}

impl GpuModel {
    /// The model's profiles; `None` for a GPU without MIG.
    #[must_use]
    pub fn mig_table(&self) -> Option<MigTable> {
        match self.layout {
            Layout::None => None,
            Layout::Seven(memory) => Some(MigTable::new(seven(memory))),
            Layout::Four(memory) => Some(MigTable::new(four(memory))),
        }
    }
}

fn entry(
    id: u32,
    compute: u8,
    (gb, mib): (u32, u64),
    extras: Extras,
    starts: &[u8],
    size: u8,
    max: u8,
) -> ProfileEntry {
    ProfileEntry {
        id: GiProfileId(id),
        profile: Profile::plain(compute, SizeGb(gb)).with(extras),
        memory: MemoryMib(mib),
        size,
        starts: starts.to_vec(),
        max,
    }
}

/// Ids and placements as `nvidia-smi mig -lgip` and `-lgipp` print them on A100, H100 and H200.
fn seven([one, two, four, eight]: [(u32, u64); 4]) -> Vec<ProfileEntry> {
    use Extras::{Media, Plain};
    vec![
        entry(19, 1, one, Plain, &[0, 1, 2, 3, 4, 5, 6], 1, 7),
        entry(20, 1, one, Media, &[0, 1, 2, 3, 4, 5, 6], 1, 1),
        entry(15, 1, two, Plain, &[0, 2, 4, 6], 2, 4),
        entry(14, 2, two, Plain, &[0, 2, 4], 2, 3),
        entry(9, 3, four, Plain, &[0, 4], 4, 2),
        entry(5, 4, four, Plain, &[0], 4, 1),
        entry(0, 7, eight, Plain, &[0], 8, 1),
    ]
}

/// Ids and placements of the A30, whose ids mean other profiles elsewhere.
fn four([one, two, four]: [(u32, u64); 3]) -> Vec<ProfileEntry> {
    use Extras::{Media, Plain};
    vec![
        entry(14, 1, one, Plain, &[0, 1, 2, 3], 1, 4),
        entry(21, 1, one, Media, &[0, 1, 2, 3], 1, 1),
        entry(5, 2, two, Plain, &[0, 2], 2, 2),
        entry(6, 2, two, Media, &[0, 2], 2, 1),
        entry(0, 4, four, Plain, &[0], 4, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_have_their_short_names() {
        for (product, name) in [
            ("NVIDIA H100 80GB HBM3", "H100-80GB"),
            ("NVIDIA H200", "H200-141GB"),
            ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
            ("NVIDIA A30", "A30-24GB"),
            ("NVIDIA L40S", "L40S-48GB"),
            ("NVIDIA L4", "L4-24GB"),
            ("Tesla T4", "T4-16GB"),
            ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
        ] {
            assert_eq!(short_name(product), name);
        }
    }

    #[test]
    fn a_profiles_name_follows_from_its_share_of_the_memory() {
        // The rule of go-nvlib: round(ceil(profile / total * 8) / 8 * ceil(total GiB)); eighths, on A30 too.
        for model in MODELS {
            for e in model.mig_table().iter().flat_map(|t| t.entries().to_vec()) {
                let eighths = (e.memory.0 * 8).div_ceil(model.memory.0);
                let nominal = (eighths * u64::from(model.memory.nominal().0) + 4) / 8;
                assert_eq!(u64::from(e.profile.size().0), nominal, "{} {}", model.name, e.profile);
            }
        }
    }
}
