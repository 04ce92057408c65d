//! GPUs with four compute slices: A30 and RTX PRO 6000.

use super::layout::{Layout, Memory, Row};
use super::{GpuModel, model};
use crate::mig::Extras::{AllMedia, Graphics, Media, NoMedia, Plain};

/// Four compute slices over four memory slices. The same ids mean other profiles on other GPUs.
pub(super) const A30: GpuModel = model("A30-24GB", &["A30"], 24_576, Layout::Rows(A30_ROWS));

#[rustfmt::skip]
const A30_ROWS: &[Row] = {
    const ONE: Memory = (6, 5_952);
    const TWO: Memory = (12, 11_968);
    &[
        Row { id: 14, compute: 1, memory: ONE, extras: Plain, starts: &[0, 1, 2, 3], size: 1, max: 4 },
        Row { id: 21, compute: 1, memory: ONE, extras: Media, starts: &[0, 1, 2, 3], size: 1, max: 1 },
        Row { id: 5, compute: 2, memory: TWO, extras: Plain, starts: &[0, 2], size: 2, max: 2 },
        Row { id: 6, compute: 2, memory: TWO, extras: Media, starts: &[0, 2], size: 2, max: 1 },
        Row { id: 0, compute: 4, memory: (24, 24_064), extras: Plain, starts: &[0], size: 4, max: 1 },
    ]
};

/// Server, workstation and Max-Q editions have the same layout: four compute slices over twelve memory slices.
pub(super) const RTX_PRO_6000: GpuModel =
    model("RTX-PRO-6000-96GB", &["RTX PRO 6000 Blackwell"], 97_887, Layout::Rows(RTX_PRO_6000_ROWS));

/// Memory under the newer drivers: 23.62, 47.38 and 95.00 GiB.
#[rustfmt::skip]
const RTX_PRO_6000_ROWS: &[Row] = {
    const ONE: Memory = (24, 24_192);
    const TWO: Memory = (48, 48_512);
    const FOUR: Memory = (96, 97_280);
    const QUARTERS: &[u8] = &[0, 3, 6, 9];
    const HALVES: &[u8] = &[0, 6];
    &[
        Row { id: 14, compute: 1, memory: ONE, extras: Plain, starts: QUARTERS, size: 3, max: 4 },
        Row { id: 21, compute: 1, memory: ONE, extras: Media, starts: QUARTERS, size: 3, max: 1 },
        Row { id: 47, compute: 1, memory: ONE, extras: Graphics, starts: QUARTERS, size: 3, max: 4 },
        Row { id: 65, compute: 1, memory: ONE, extras: AllMedia, starts: QUARTERS, size: 3, max: 1 },
        Row { id: 67, compute: 1, memory: ONE, extras: NoMedia, starts: QUARTERS, size: 3, max: 4 },
        Row { id: 5, compute: 2, memory: TWO, extras: Plain, starts: HALVES, size: 6, max: 2 },
        Row { id: 35, compute: 2, memory: TWO, extras: Graphics, starts: HALVES, size: 6, max: 2 },
        Row { id: 64, compute: 2, memory: TWO, extras: AllMedia, starts: HALVES, size: 6, max: 1 },
        Row { id: 66, compute: 2, memory: TWO, extras: NoMedia, starts: HALVES, size: 6, max: 2 },
        Row { id: 0, compute: 4, memory: FOUR, extras: Plain, starts: &[0], size: 12, max: 1 },
        Row { id: 32, compute: 4, memory: FOUR, extras: Graphics, starts: &[0], size: 12, max: 1 },
    ]
};
