//! Numbers that depend on a seed only, for tests that compare what follows from them.

/// A linear congruential generator (the constants are Knuth's for MMIX).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Numbers that depend on `seed` only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number of 32 bits.
    pub fn draw(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 32).unwrap_or_default()
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.draw() >> 1) as usize % limit
    }
}
