//! A lookup table of the first free start of a profile on a GPU, for one order of starts and every mask.

use crate::profile::{PerProfile, Profile};

/// For each profile and each mask of taken memory slices, the first free start.
#[derive(Debug, Clone)]
pub struct Slots(PerProfile<Vec<Option<u8>>>);

impl Slots {
    /// The table for an order of starts.
    pub fn with_order(order: impl Fn(Profile) -> Vec<u8>) -> Self {
        let first = |profile: Profile| {
            let starts = order(profile);
            let free = |mask: u8| starts.iter().copied().find(|start| mask & profile.mask(*start) == 0);
            (0..=u8::MAX).map(free).collect()
        };
        Self(Profile::ALL.map(first))
    }

    /// The table for starts from the lowest up.
    pub fn lowest() -> Self {
        Self::with_order(|profile| profile.starts().to_vec())
    }

    /// The table for an instance that the driver places, which chooses the start that keeps most other placements
    /// possible. The order is that in which NVIDIA's MIG user guide shows instances come up, one profile at a time.
    pub fn driver() -> Self {
        Self::with_order(|profile| driver_order(profile).to_vec())
    }

    /// The first free start beside these memory slices.
    pub fn first(&self, profile: Profile, mask: u8) -> Option<u8> {
        self.0[profile.index()][usize::from(mask)]
    }
}

/// The order in which the driver tries starts.
pub fn driver_order(profile: Profile) -> &'static [u8] {
    match profile {
        Profile::OneTen => &[6, 4, 5, 0, 1, 2, 3],
        Profile::OneTwenty => &[6, 4, 0, 2],
        Profile::Two => &[4, 0, 2],
        Profile::Three => &[4, 0],
        Profile::Four | Profile::Seven => &[0],
    }
}
