//! `HAMi` with its default policies, by our reading of its sources of August 2026. It packs nodes: it takes the most
//! used one with room. It spreads over the GPUs of a node: it takes the least used one. An instance goes to the highest
//! free start for `1g` and `3g` profiles, to the lowest for the others. Use is counted in memory slices.

use super::slots::Slots;
use super::{GPUS_OF_A_NODE, Rule};
use crate::board::{Board, Gpu};
use crate::profile::Profile;

#[derive(Debug)]
pub struct Hami(Slots);

impl Default for Hami {
    fn default() -> Self {
        Self(Slots::with_order(|profile| {
            let mut starts = profile.starts().to_vec();
            if matches!(profile, Profile::OneTen | Profile::OneTwenty | Profile::Three) {
                starts.reverse();
            }
            starts
        }))
    }
}

impl Rule for Hami {
    fn choose(&self, board: &mut Board, profile: Profile) -> Option<(usize, u8)> {
        let nodes = board.gpus().chunks(GPUS_OF_A_NODE).enumerate();
        let with_room = nodes.filter_map(|(node, gpus)| {
            let (at, start) = self.on_node(gpus, profile)?;
            let free: u32 = gpus.iter().map(Gpu::free).sum();
            Some((free, node * GPUS_OF_A_NODE + at, start))
        });
        with_room.min_by_key(|(free, ..)| *free).map(|(_, at, start)| (at, start))
    }
}

impl Hami {
    fn on_node(&self, gpus: &[Gpu], profile: Profile) -> Option<(usize, u8)> {
        let with_room = gpus.iter().enumerate().filter_map(|(at, gpu)| {
            let start = self.0.first(profile, gpu.mask())?;
            Some((gpu.mask().count_ones(), at, start))
        });
        with_room.min_by_key(|(used, ..)| *used).map(|(_, at, start)| (at, start))
    }
}
