//! The six profiles of an 80 GB GPU with seven compute slices. The bench has its own table, because it judges core's.

use std::str::FromStr;

use anyhow::anyhow;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// `1g.10gb`
    OneTen,
    /// `1g.20gb`
    OneTwenty,
    /// `2g.20gb`
    Two,
    /// `3g.40gb`
    Three,
    /// `4g.40gb`
    Four,
    /// `7g.80gb`
    Seven,
}

pub const PROFILES: usize = 6;

/// A figure for each profile, by [`Profile::index`].
pub type PerProfile<T> = [T; PROFILES];

impl Profile {
    /// All profiles, the smallest first.
    pub const ALL: PerProfile<Self> =
        [Self::OneTen, Self::OneTwenty, Self::Two, Self::Three, Self::Four, Self::Seven];

    /// The profile's number among all.
    pub fn index(self) -> usize {
        self as usize
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::OneTen => "1g.10gb",
            Self::OneTwenty => "1g.20gb",
            Self::Two => "2g.20gb",
            Self::Three => "3g.40gb",
            Self::Four => "4g.40gb",
            Self::Seven => "7g.80gb",
        }
    }

    /// The number of memory slices, of a GPU's eight.
    pub fn size(self) -> u8 {
        match self {
            Self::OneTen => 1,
            Self::OneTwenty | Self::Two => 2,
            Self::Three | Self::Four => 4,
            Self::Seven => 8,
        }
    }

    /// The memory slices at which it may start (MIG user guide).
    pub fn starts(self) -> &'static [u8] {
        match self {
            Self::OneTen => &[0, 1, 2, 3, 4, 5, 6],
            Self::OneTwenty => &[0, 2, 4, 6],
            Self::Two => &[0, 2, 4],
            Self::Three => &[0, 4],
            Self::Four | Self::Seven => &[0],
        }
    }

    /// The memory slices that it takes from a start, as bits.
    pub fn mask(self, start: u8) -> u8 {
        let ones = u8::MAX >> (8 - self.size());
        ones << start
    }
}

impl FromStr for Profile {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let found = Self::ALL.into_iter().find(|profile| profile.name() == text);
        found.ok_or_else(|| anyhow!("{text:?} is no profile of an 80 GB GPU with seven slices"))
    }
}

/// Memory slices of these counts of instances.
pub fn slices(counts: &PerProfile<u32>) -> u32 {
    Profile::ALL.iter().zip(counts).map(|(profile, count)| u32::from(profile.size()) * count).sum()
}
