//! The reference comparison as its authors published it (nos, "GPU sharing performance comparison"): YOLOS-small on an
//! A100 80 GB, driver 525.60.13, mean seconds over two minutes, rounded here to a microsecond.

use super::Technology;

const ROWS: [(Technology, u32, f64); 12] = [
    (Technology::TimeSlicing, 1, 0.088_150),
    (Technology::TimeSlicing, 3, 0.293_140),
    (Technology::TimeSlicing, 5, 0.488_952),
    (Technology::TimeSlicing, 7, 0.684_880),
    (Technology::Mps, 1, 0.087_962),
    (Technology::Mps, 3, 0.164_002),
    (Technology::Mps, 5, 0.240_864),
    (Technology::Mps, 7, 0.319_818),
    (Technology::Mig, 1, 0.342_366),
    (Technology::Mig, 3, 0.341_314),
    (Technology::Mig, 5, 0.345_325),
    (Technology::Mig, 7, 0.344_250),
];

pub const WORKLOAD: &str = "yolos";

pub const ALONE: f64 = ROWS[0].2;

pub fn mean(technology: Technology, copies: u32) -> Option<f64> {
    ROWS.iter().find(|(t, c, _)| (*t, *c) == (technology, copies)).map(|(_, _, mean)| *mean)
}
