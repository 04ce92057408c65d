//! The reference comparison, as its authors published it (nos, "GPU sharing performance comparison"): YOLOS-small on an A100 80
//! GB PCIe, driver 525.60.13, mean seconds over two minutes.

use super::Technology;

const ROWS: [(Technology, u32, f64); 12] = [
    (Technology::TimeSlicing, 1, 0.088_150_482_472_088_79),
    (Technology::TimeSlicing, 3, 0.293_140_332_383_948_4),
    (Technology::TimeSlicing, 5, 0.488_951_648_451_086_3),
    (Technology::TimeSlicing, 7, 0.684_880_389_834_409_2),
    (Technology::Mps, 1, 0.087_961_543_661_775_33),
    (Technology::Mps, 3, 0.164_001_880_461_715_8),
    (Technology::Mps, 5, 0.240_864_149_114_499_8),
    (Technology::Mps, 7, 0.319_818_225_320_807_6),
    (Technology::Mig, 1, 0.342_365_898_939_392_84),
    (Technology::Mig, 3, 0.341_314_046_412_867_5),
    (Technology::Mig, 5, 0.345_325_010_393_910_3),
    (Technology::Mig, 7, 0.344_249_621_697_326_33),
];

/// The workload that it measured.
pub const WORKLOAD: &str = "yolos";

/// The mean of one copy alone under time slicing.
pub const ALONE: f64 = ROWS[0].2;

/// Its mean for so many copies.
pub fn mean(technology: Technology, copies: u32) -> Option<f64> {
    ROWS.iter().find(|(t, c, _)| (*t, *c) == (technology, copies)).map(|(_, _, mean)| *mean)
}
