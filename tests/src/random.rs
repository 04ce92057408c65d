//! Pseudo-random numbers that are the same on every machine.

/// The generator xorshift64* (Vigna 2016).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers that depend on `seed` only.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// The next number. Its high bits are the better ones.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.draw() >> 33).unwrap_or(0) % bound.max(1)
    }
}
