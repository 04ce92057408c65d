//! The form of a model's table: the rows that all GPUs of a family share, or rows of its own.

use crate::mig::{Extras, GiProfileId, MigTable, Profile, ProfileEntry};
use crate::units::{MemoryMib, SizeGb};

/// Nominal GB and real MiB of a number of memory slices.
pub(super) type Memory = (u32, u64);

/// How a model's memory slices can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// The model does not support MIG.
    None,
    /// Seven compute slices on an axis of eight, with the memory of 1, 2, 4 and 8 memory slices.
    Seven([Memory; 4]),
    /// The model has rows of its own.
    Rows(&'static [Row]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: u32,
    pub(super) compute: u8,
    pub(super) memory: Memory,
    pub(super) extras: Extras,
    pub(super) starts: &'static [u8],
    pub(super) size: u8,
    pub(super) max: u8,
}

impl Layout {
    pub(super) fn table(self) -> Option<MigTable> {
        match self {
            Self::None => None,
            Self::Seven(memory) => Some(MigTable::new(seven(memory).map(Row::entry).to_vec())),
            Self::Rows(rows) => Some(MigTable::new(rows.iter().copied().map(Row::entry).collect())),
        }
    }
}

impl Row {
    fn entry(self) -> ProfileEntry {
        let (gb, mib) = self.memory;
        ProfileEntry {
            id: GiProfileId(self.id),
            profile: Profile::plain(self.compute, SizeGb(gb)).with_extras(self.extras),
            memory: MemoryMib(mib),
            size: self.size,
            starts: self.starts.to_vec(),
            max: self.max,
        }
    }
}

const EACH: &[u8] = &[0, 1, 2, 3, 4, 5, 6];

/// Ids and placements as `nvidia-smi mig -lgip` and `-lgipp` print them on A100, H100 and H200.
#[rustfmt::skip]
fn seven([one, two, four, eight]: [Memory; 4]) -> [Row; 7] {
    use Extras::{Media, Plain};
    [
        Row { id: 19, compute: 1, memory: one, extras: Plain, starts: EACH, size: 1, max: 7 },
        Row { id: 20, compute: 1, memory: one, extras: Media, starts: EACH, size: 1, max: 1 },
        Row { id: 15, compute: 1, memory: two, extras: Plain, starts: &[0, 2, 4, 6], size: 2, max: 4 },
        Row { id: 14, compute: 2, memory: two, extras: Plain, starts: &[0, 2, 4], size: 2, max: 3 },
        Row { id: 9, compute: 3, memory: four, extras: Plain, starts: &[0, 4], size: 4, max: 2 },
        Row { id: 5, compute: 4, memory: four, extras: Plain, starts: &[0], size: 4, max: 1 },
        Row { id: 0, compute: 7, memory: eight, extras: Plain, starts: &[0], size: 8, max: 1 },
    ]
}
