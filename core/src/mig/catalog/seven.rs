//! GPUs with seven compute slices over eight memory slices: A100, Hopper and the data centre GPUs of Blackwell.
//!
//! Memory is what listings print; where drivers differ, it is the middle. Placements were listed on A100, H100 and H200
//! only.

use super::layout::{Layout, Memory};
use super::{GpuModel, model};
use crate::mig::{Extras, GiProfileId, Profile};
use crate::units::SizeGb;

const fn seven(
    name: &'static str,
    products: &'static [&'static str],
    memory: u64,
    of_slices: [Memory; 4],
) -> GpuModel {
    model(name, products, memory, Layout::Seven(of_slices))
}

/// Estimates memory that no listing shows: 98 % of `eighths` eighths of `total`. In the listings that exist, profiles
/// of two and more memory slices have 92 to 99 %.
const fn guess(total: u64, eighths: u64) -> u64 {
    total * eighths * 98 / 800
}

pub(super) const A100_40: GpuModel = seven(
    "A100-40GB",
    &["A100 SXM4 40GB", "A100 PCIE 40GB", "A100"],
    40_960,
    [(5, 4_864), (10, 9_856), (20, 19_968), (40, 40_192)],
);

pub(super) const A100_80: GpuModel = seven(
    "A100-80GB",
    &["A100 SXM4 80GB", "A100 80GB PCIe", "A100"],
    81_920,
    [(10, 9_728), (20, 19_968), (40, 40_192), (80, 80_896)],
);

pub(super) const H100_80: GpuModel = seven(
    "H100-80GB",
    &["H100 80GB", "H100 PCIe", "H100"],
    81_559,
    [(10, 9_984), (20, 20_090), (40, 40_448), (80, 81_152)],
);

/// Listed: 1g 10.75 GiB, 2g 21.5 to 21.62, 3g 46.12 to 46.38, 7g 92.62 to 93.12.
pub(super) const H100_94: GpuModel =
    seven("H100-94GB", &["H100 NVL"], 95_830, [(12, 11_008), (24, 22_080), (47, 47_360), (94, 95_104)]);

/// 2g 23.00 GiB, 3g 46.50, 7g 93.00, as on GH200; 1g is about 11.
const OF_96: [Memory; 4] = [(12, 11_264), (24, 23_552), (48, 47_616), (96, 95_232)];

/// Read from an H200 through NVML.
const OF_141: [Memory; 4] = [(18, 16_384), (35, 33_280), (71, 71_424), (141, 143_360)];

pub(super) const H100_96: GpuModel = seven("H100-96GB", &["H100 96GB", "H100"], 97_871, OF_96).unsure();

pub(super) const H200: GpuModel = seven("H200-141GB", &["H200"], 143_771, OF_141);

/// The guide gives it the profile names of the H100 with 96 GB.
pub(super) const H20_96: GpuModel = seven("H20-96GB", &["H20"], 97_871, OF_96).unsure();

/// The guide gives it the profile names of the H200.
pub(super) const H20_141: GpuModel = seven("H20-141GB", &["H20 3e", "H20"], 143_771, OF_141).unsure();

pub(super) const GH200_96: GpuModel = seven("GH200-96GB", &["GH200 480GB", "GH200"], 97_871, OF_96).unsure();

/// Listed: 1g 17.50 GiB, 2g 35.25. The larger profiles are estimated.
pub(super) const GH200_144: GpuModel = seven(
    "GH200-144GB",
    &["GH200 144G", "GH200 480GB", "GH200"],
    146_831,
    [(18, 17_920), (36, 36_096), (72, guess(146_831, 4)), (144, guess(146_831, 8))],
)
.unsure();

/// Listed: 1g 20.5 to 22.0 GiB, 2g 44.25, 3g about 89. 7g is estimated.
pub(super) const B200: GpuModel = seven(
    "B200-180GB",
    &["B200"],
    183_359,
    [(23, 21_760), (45, 45_312), (90, 91_136), (180, guess(183_359, 8))],
)
.unsure();

/// Listed: 1g 20 to 22 GiB, 2g 45.50. Its first drivers gave other names.
pub(super) const GB200: GpuModel = seven(
    "GB200-186GB",
    &["GB200"],
    189_471,
    [(23, 21_504), (47, 46_592), (93, guess(189_471, 4)), (186, guess(189_471, 8))],
)
.unsure()
.renamed(&[
    named(19, 1, 24),
    (GiProfileId(20), Profile::plain(1, SizeGb(24)).with_extras(Extras::Media)),
    named(9, 3, 95),
    named(5, 4, 95),
    named(0, 7, 189),
]);

/// Listed: 1g 33.75 GiB. The larger profiles are estimated.
pub(super) const B300: GpuModel = seven(
    "B300-269GB",
    &["B300 SXM6 AC", "B300"],
    275_040,
    [(34, 34_560), (67, guess(275_040, 2)), (135, guess(275_040, 4)), (269, guess(275_040, 8))],
)
.unsure();

/// Drivers from 610 on give other names (NVIDIA's playbooks for DGX Station).
pub(super) const GB300: GpuModel = seven(
    "GB300-278GB",
    &["GB300"],
    284_208,
    [(35, guess(284_208, 1)), (70, guess(284_208, 2)), (139, guess(284_208, 4)), (278, guess(284_208, 8))],
)
.unsure()
.renamed(&[
    named(19, 1, 31),
    (GiProfileId(20), Profile::plain(1, SizeGb(31)).with_extras(Extras::Media)),
    named(9, 3, 126),
    named(5, 4, 126),
    named(0, 7, 251),
]);

const fn named(id: u32, compute: u8, gb: u32) -> (GiProfileId, Profile) {
    (GiProfileId(id), Profile::plain(compute, SizeGb(gb)))
}
