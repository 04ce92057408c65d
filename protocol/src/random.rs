//! Random numbers for jitter, from the keys that std draws for hash maps. They are no secrets, so no crate is needed.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A random duration from 0 to `most`, uniformly distributed.
pub fn up_to(most: Duration) -> Duration {
    let [a, b, c, d, ..] = RandomState::new().hash_one(0_u8).to_ne_bytes();
    most.mul_f64(f64::from(u32::from_ne_bytes([a, b, c, d])) / f64::from(u32::MAX))
}
