//! The slices of a history, by their worth.

use crate::contract::{MigPart, Shape};
use crate::mig::ComputeInstance;
use crate::units::{ComputePercent, SizeGb};

pub(super) const WARES: usize = 12;

/// The worth of a slice: two slices are worth the same if they have the same number, wherever they lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ware {
    pub(super) number: usize,
    pub(super) place: usize,
}

impl Ware {
    pub(super) fn model(self) -> &'static str {
        match self.number {
            0..=3 => "H100-80GB",
            9 => "H200-141GB",
            7 | 8 => "T4-16GB",
            _ => "L40S-48GB",
        }
    }

    pub(super) fn shape(self) -> Shape {
        let place = u8::try_from(self.place).unwrap_or(0);
        let mig = |profile: &str, size, part| {
            let profile = profile.parse().expect("a profile");
            Shape::Mig { profile, start: place * size, size, part }
        };
        let compute = ComputeInstance { start: place, compute: 1 };
        let mps = |size, compute| Shape::Mps { size_gb: SizeGb(size), compute: ComputePercent::new(compute) };
        match self.number {
            0 => mig("1g.10gb", 1, MigPart::Whole),
            1 => mig("2g.20gb", 2, MigPart::Whole),
            2 => mig("2g.20gb", 2, MigPart::Compute(compute)),
            3 => mig("2g.20gb", 2, MigPart::Replica { replica: place }),
            4 => mps(10, 0),
            5 => mps(10, 50),
            6 => mps(9, 0),
            8 => Shape::Whole { size_gb: SizeGb(10) },
            9 => mig("1g.18gb", 1, MigPart::Whole),
            10 => Shape::TimeSlicing { size_gb: SizeGb(9) },
            // Wares 7 and 11; the latter is of another model.
            _ => Shape::TimeSlicing { size_gb: SizeGb(10) },
        }
    }
}
