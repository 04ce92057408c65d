//! `InstaSlice`, today the Dynamic Accelerator Slicer operator, by our reading of its sources of April 2026. It takes
//! the node with room that has the most free memory slices, there the first GPU with room, and its lowest free start.

use super::slots::Slots;
use super::{GPUS_OF_A_NODE, Rule};
use crate::board::{Board, Gpu};
use crate::profile::Profile;

#[derive(Debug)]
pub struct Das(Slots);

impl Default for Das {
    fn default() -> Self {
        Self(Slots::lowest())
    }
}

impl Rule for Das {
    fn choose(&self, board: &mut Board, profile: Profile) -> Option<(usize, u8)> {
        let nodes = board.gpus().chunks(GPUS_OF_A_NODE).enumerate();
        let with_room = nodes.filter_map(|(node, gpus)| {
            let first = |(at, gpu): (usize, &Gpu)| Some((at, self.0.first(profile, gpu.mask())?));
            let (at, start) = gpus.iter().enumerate().find_map(first)?;
            let used: u32 = gpus.iter().map(|gpu| gpu.mask().count_ones()).sum();
            Some((used, node * GPUS_OF_A_NODE + at, start))
        });
        with_room.min_by_key(|(used, ..)| *used).map(|(_, at, start)| (at, start))
    }
}
