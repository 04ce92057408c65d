//! First-fit: takes the first GPU that has room, at its lowest free start. That is about what the allocator of
//! Kubernetes' dynamic resource allocation does with the devices of NVIDIA's driver (general knowledge; its sources
//! were not read).

use super::Rule;
use super::slots::Slots;
use crate::board::Board;
use crate::profile::Profile;

#[derive(Debug)]
pub struct FirstFit(Slots);

impl Default for FirstFit {
    fn default() -> Self {
        Self(Slots::lowest())
    }
}

impl Rule for FirstFit {
    fn choose(&self, board: &mut Board, profile: Profile) -> Option<(usize, u8)> {
        board.gpus().iter().enumerate().find_map(|(at, gpu)| Some((at, self.0.first(profile, gpu.mask())?)))
    }
}
