//! The order in which devices are picked if the plugin has no preference.
//!
//! The kubelet iterates a Go map, so any order may occur. Here the order differs from pick to pick, but is
//! the same in every run with the same seed. An agent that relies on an order fails a test, and fails it
//! again.

use std::collections::BTreeSet;

/// A sequence of pseudo-random orders.
#[derive(Debug, Clone, Default)]
pub struct PickOrder {
    seed: u64,
    picks: u64,
}

impl PickOrder {
    /// Orders that depend on `seed` only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, picks: 0 }
    }

    /// A seed for a node, so that nodes have different orders.
    #[must_use]
    pub fn seed_of(node: &str) -> u64 {
        hash(0, node)
    }

    /// The IDs in the next order of the sequence.
    pub fn shuffled(&mut self, ids: &BTreeSet<String>) -> Vec<String> {
        self.picks += 1;
        let key = self.seed ^ self.picks;
        let mut ids: Vec<String> = ids.iter().cloned().collect();
        ids.sort_by_cached_key(|id| hash(key, id));
        ids
    }
}

/// FNV-1a over the key and the text, with the finishing step of splitmix64 so that short texts spread.
fn hash(key: u64, text: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let fnv = text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}
