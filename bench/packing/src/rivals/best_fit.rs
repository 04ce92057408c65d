//! Best-fit: takes the GPU with room that has the fewest free memory slices, and the first of equal ones. The driver
//! chooses the start. It is the strongest of the simple rules.

use super::Rule;
use super::slots::Slots;
use crate::board::Board;
use crate::profile::Profile;

#[derive(Debug)]
pub struct BestFit(Slots);

impl Default for BestFit {
    fn default() -> Self {
        Self(Slots::driver())
    }
}

impl Rule for BestFit {
    fn choose(&self, board: &mut Board, profile: Profile) -> Option<(usize, u8)> {
        let with_room = board.gpus().iter().enumerate().filter_map(|(at, gpu)| {
            let start = self.0.first(profile, gpu.mask())?;
            Some((gpu.free(), at, start))
        });
        with_room.min_by_key(|(free, ..)| *free).map(|(_, at, start)| (at, start))
    }
}
