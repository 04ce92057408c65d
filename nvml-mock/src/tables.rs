//! The numbers of every model's GPU instance profiles. Data only.
//!
//! A shape is common to all GPUs of a family; a size is a model's own. Placements were listed on A100, H100, H200, A30
//! and RTX PRO 6000, and are assumed for the rest of their family.

use crate::model::Model;
use crate::profile::{Engines, Profile, nominal_gb};

/// What a profile has besides its slices, by the suffix of its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extension {
    None,
    /// The suffix `+me`: the media extension.
    Media,
    /// The suffix `+me.all`: every media engine.
    AllMedia,
    /// The suffix `-me`: no media engine.
    NoMedia,
    /// The suffix `+gfx`: graphics.
    Graphics,
}

impl Extension {
    fn suffix(self) -> &'static str {
        match self {
            Extension::None => "",
            Extension::Media => "+me",
            Extension::AllMedia => "+me.all",
            Extension::NoMedia => "-me",
            Extension::Graphics => "+gfx",
        }
    }
}

/// The part of a profile that all GPUs of one family share.
struct Shape {
    index: u32,
    id: u32,
    max: u32,
    compute: u32,
    starts: &'static [u32],
    size: u32,
    extension: Extension,
}

use Extension::{AllMedia, Graphics, Media, NoMedia, None as Bare};

/// Seven compute slices over eight memory slices: A100, H100, H200 (`nvidia-smi mig -lgip`, `-lgipp`).
#[rustfmt::skip]
const SEVEN: [Shape; 7] = [
    Shape { index: 0, id: 19, max: 7, compute: 1, starts: &[0, 1, 2, 3, 4, 5, 6], size: 1, extension: Bare },
    Shape { index: 7, id: 20, max: 1, compute: 1, starts: &[0, 1, 2, 3, 4, 5, 6], size: 1, extension: Media },
    Shape { index: 9, id: 15, max: 4, compute: 1, starts: &[0, 2, 4, 6], size: 2, extension: Bare },
    Shape { index: 1, id: 14, max: 3, compute: 2, starts: &[0, 2, 4], size: 2, extension: Bare },
    Shape { index: 2, id: 9, max: 2, compute: 3, starts: &[0, 4], size: 4, extension: Bare },
    Shape { index: 3, id: 5, max: 1, compute: 4, starts: &[0], size: 4, extension: Bare },
    Shape { index: 4, id: 0, max: 1, compute: 7, starts: &[0], size: 8, extension: Bare },
];

/// The A30: four slices, and its own ids.
#[rustfmt::skip]
const FOUR: [Shape; 5] = [
    Shape { index: 0, id: 14, max: 4, compute: 1, starts: &[0, 1, 2, 3], size: 1, extension: Bare },
    Shape { index: 7, id: 21, max: 1, compute: 1, starts: &[0, 1, 2, 3], size: 1, extension: Media },
    Shape { index: 1, id: 5, max: 2, compute: 2, starts: &[0, 2], size: 2, extension: Bare },
    Shape { index: 8, id: 6, max: 1, compute: 2, starts: &[0, 2], size: 2, extension: Media },
    Shape { index: 3, id: 0, max: 1, compute: 4, starts: &[0], size: 4, extension: Bare },
];

/// RTX PRO 6000: four compute slices over twelve memory slices.
#[rustfmt::skip]
const TWELVE: [Shape; 11] = [
    Shape { index: 0, id: 14, max: 4, compute: 1, starts: &[0, 3, 6, 9], size: 3, extension: Bare },
    Shape { index: 7, id: 21, max: 1, compute: 1, starts: &[0, 3, 6, 9], size: 3, extension: Media },
    Shape { index: 10, id: 47, max: 4, compute: 1, starts: &[0, 3, 6, 9], size: 3, extension: Graphics },
    Shape { index: 15, id: 65, max: 1, compute: 1, starts: &[0, 3, 6, 9], size: 3, extension: AllMedia },
    Shape { index: 13, id: 67, max: 4, compute: 1, starts: &[0, 3, 6, 9], size: 3, extension: NoMedia },
    Shape { index: 1, id: 5, max: 2, compute: 2, starts: &[0, 6], size: 6, extension: Bare },
    Shape { index: 11, id: 35, max: 2, compute: 2, starts: &[0, 6], size: 6, extension: Graphics },
    Shape { index: 16, id: 64, max: 1, compute: 2, starts: &[0, 6], size: 6, extension: AllMedia },
    Shape { index: 14, id: 66, max: 2, compute: 2, starts: &[0, 6], size: 6, extension: NoMedia },
    Shape { index: 3, id: 0, max: 1, compute: 4, starts: &[0], size: 12, extension: Bare },
    Shape { index: 12, id: 32, max: 1, compute: 4, starts: &[0], size: 12, extension: Graphics },
];

/// Memory in MiB, multiprocessors, then copy, decoder, JPEG and OFA engines: one row per shape, in its order.
type Sizes = (u64, u32, [u32; 4]);

/// `lgip` of an A100-SXM4-40GB; the double-memory row needs driver 525.
#[rustfmt::skip]
const A100_40: [Sizes; 7] = [
    (4864, 14, [1, 0, 0, 0]), (4864, 14, [1, 1, 1, 1]), (9856, 14, [1, 1, 0, 0]), (9856, 28, [2, 1, 0, 0]),
    (19968, 42, [3, 2, 0, 0]), (19968, 56, [4, 2, 0, 0]), (40192, 98, [7, 5, 1, 1]),
];
/// `lgip` of an A100-SXM4-80GB; its 7g varied between 80384 and 80896 MiB with the driver.
#[rustfmt::skip]
const A100_80: [Sizes; 7] = [
    (9728, 14, [1, 0, 0, 0]), (9728, 14, [1, 1, 1, 1]), (19968, 14, [1, 1, 0, 0]), (19968, 28, [2, 1, 0, 0]),
    (40192, 42, [3, 2, 0, 0]), (40192, 56, [4, 2, 0, 0]), (80384, 98, [7, 5, 1, 1]),
];
/// `lgip` of an H100 80GB HBM3 (9.75, 19.62, 39.50 and 79.25 GiB).
const H100: [Sizes; 7] = hopper([9984, 20096, 40448, 81152]);
/// Every number was read through NVML from an H200 under driver 580.159.04.
const H200: [Sizes; 7] = hopper([16384, 33280, 71424, 143_360]);
/// `lgip` of an H100 NVL (10.75, 21.50, 46.12 and 92.62 GiB).
const H100_NVL: [Sizes; 7] = hopper([11008, 22016, 47232, 94848]);
/// `lgip` of a GH200 480GB: 23.00, 46.50 and 93.00 GiB; 1g is nominal.
const HOPPER_96: [Sizes; 7] = hopper([11520, 23552, 47616, 95232]);
/// A GH200 with 144 GB: 17.50 and 35.25 GiB; 3g and 7g are nominal.
const GH200_144: [Sizes; 7] = hopper([17920, 36096, 72704, 145_408]);
/// A B200: 21.00 and 44.25 GiB; the rest is nominal.
const B200: [Sizes; 7] = blackwell([21504, 45312, 91136, 182_272], [18, 30, 36, 70, 72, 148]);
/// A GB200: 21.00 and 45.50 GiB; the rest is nominal.
const GB200: [Sizes; 7] = blackwell([21504, 46592, 93696, 187_392], [18, 32, 38, 74, 76, 152]);
/// A B300; all numbers are nominal.
const B300: [Sizes; 7] = blackwell([34304, 67584, 135_168, 270_336], [18, 30, 36, 70, 72, 148]);
/// A GB300; all numbers are nominal.
const GB300: [Sizes; 7] = blackwell([34816, 69632, 140_288, 282_624], [18, 32, 38, 74, 76, 152]);

/// `lgip` of an A30 (5.81, 11.69 and 23.44 GiB).
#[rustfmt::skip]
const A30: [Sizes; 5] = [
    (5952, 14, [1, 0, 0, 0]), (5952, 14, [1, 1, 1, 1]), (11968, 28, [2, 2, 0, 0]), (11968, 28, [2, 2, 1, 1]),
    (24000, 56, [4, 4, 1, 1]),
];

/// `lgip` of an RTX PRO 6000 (23.62, 47.38 and 95.00 GiB).
#[rustfmt::skip]
const RTX_PRO_6000: [Sizes; 11] = [
    (24192, 46, [1, 1, 1, 0]), (24192, 46, [1, 1, 1, 1]), (24192, 46, [1, 1, 1, 0]),
    (24192, 46, [1, 4, 4, 1]), (24192, 46, [1, 0, 0, 0]),
    (48512, 94, [2, 2, 2, 0]), (48512, 94, [2, 2, 2, 0]), (48512, 94, [2, 4, 4, 1]), (48512, 94, [2, 0, 0, 0]),
    (97280, 188, [4, 4, 4, 1]), (97280, 188, [4, 4, 4, 1]),
];

/// Engines and multiprocessors of every Hopper whose listing is known.
const fn hopper([one, two, four, eight]: [u64; 4]) -> [Sizes; 7] {
    [
        (one, 16, [1, 1, 1, 0]),
        (one, 16, [1, 1, 1, 1]),
        (two, 26, [1, 1, 1, 0]),
        (two, 32, [2, 2, 2, 0]),
        (four, 60, [3, 3, 3, 0]),
        (four, 64, [4, 4, 4, 0]),
        (eight, 132, [8, 7, 7, 1]),
    ]
}

/// Multiprocessors of 1g, 1g with double memory, 2g, 3g, 4g and 7g; twice the copy engines of a Hopper (MIG guide).
const fn blackwell([one, two, four, eight]: [u64; 4], sm: [u32; 6]) -> [Sizes; 7] {
    [
        (one, sm[0], [2, 1, 1, 0]),
        (one, sm[0], [2, 1, 1, 1]),
        (two, sm[1], [2, 1, 1, 0]),
        (two, sm[2], [4, 2, 2, 0]),
        (four, sm[3], [6, 3, 3, 0]),
        (four, sm[4], [8, 4, 4, 0]),
        (eight, sm[5], [16, 7, 7, 1]),
    ]
}

/// An H20 has the profiles of `like` with 78 multiprocessors in all; their distribution is nominal.
fn h20(mut like: [Sizes; 7]) -> [Sizes; 7] {
    for (row, multiprocessors) in like.iter_mut().zip([10, 10, 16, 18, 34, 38, 78]) {
        row.1 = multiprocessors;
    }
    like
}

/// The profiles of `model`; none without MIG.
pub(crate) fn profiles_of(model: Model) -> Vec<Profile> {
    match model {
        Model::A100Gb40 => table(model, &SEVEN, &A100_40),
        Model::A100Gb80 => table(model, &SEVEN, &A100_80),
        Model::H100 => table(model, &SEVEN, &H100),
        Model::H100Nvl => table(model, &SEVEN, &H100_NVL),
        Model::H100Gb96 | Model::GH200Gb96 => table(model, &SEVEN, &HOPPER_96),
        Model::GH200Gb144 => table(model, &SEVEN, &GH200_144),
        Model::H20Gb96 => table(model, &SEVEN, &h20(HOPPER_96)),
        Model::H20Gb141 => table(model, &SEVEN, &h20(H200)),
        Model::H200 => table(model, &SEVEN, &H200),
        Model::B200 => table(model, &SEVEN, &B200),
        Model::GB200 => table(model, &SEVEN, &GB200),
        Model::B300 => table(model, &SEVEN, &B300),
        Model::GB300 => table(model, &SEVEN, &GB300),
        Model::A30 => table(model, &FOUR, &A30),
        Model::RtxPro6000 => table(model, &TWELVE, &RTX_PRO_6000),
        Model::A10G | Model::L40S | Model::L4 | Model::T4 => Vec::new(),
    }
}

fn table(model: Model, shapes: &[Shape], sizes: &[Sizes]) -> Vec<Profile> {
    shapes.iter().zip(sizes).map(|(shape, sizes)| profile(model, shape, sizes)).collect()
}

fn profile(model: Model, shape: &Shape, &(memory_mib, multiprocessors, engines): &Sizes) -> Profile {
    let [copy, decoder, jpeg, ofa] = engines;
    let gb = nominal_gb(memory_mib, model.total_mib());
    // Only the RTX has encoders, and every profile has as many of them as decoders.
    let encoder = if model == Model::RtxPro6000 { decoder } else { 0 };
    Profile {
        index: shape.index,
        id: shape.id,
        max_instances: shape.max,
        compute_slices: shape.compute,
        starts: shape.starts,
        memory_slices: shape.size,
        memory_mib,
        multiprocessors,
        media_extension: matches!(shape.extension, Extension::Media | Extension::AllMedia),
        name: format!("{}g.{gb}gb{}", shape.compute, shape.extension.suffix()),
        engines: Engines { copy, decoder, encoder, jpeg, ofa },
    }
}
