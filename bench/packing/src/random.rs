//! Random numbers that are the same on every machine.

use crate::report::as_f64;

/// The generator Splitmix64 (Steele, Lea and Flood, OOPSLA'14).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // One step from another constant, so that consecutive seeds start far apart.
        Self(Self(seed ^ 0xd1b5_4a32_d192_ed03).next())
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
        let bits = (self.next() >> 11) as f64;
        bits / as_f64(1 << 53)
    }

    /// From 0 to below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of the product: its bias is below bound / 2^64.
        let product = u128::from(self.next()) * u128::try_from(bound).unwrap_or(1);
        usize::try_from(product >> 64).unwrap_or(0)
    }

    /// Exponential, of mean 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Lognormal: `mu` and `sigma` are those of its logarithm.
    pub fn lognormal(&mut self, mu: f64, sigma: f64) -> f64 {
        let (radius, angle) = ((2.0 * self.exponential()).sqrt(), std::f64::consts::TAU * self.unit());
        (mu + sigma * radius * angle.cos()).exp()
    }

    /// An index, drawn in proportion to its weight.
    pub fn pick(&mut self, weights: &[f64]) -> usize {
        let mut at = self.unit() * weights.iter().sum::<f64>();
        let found = weights.iter().position(|weight| {
            at -= weight;
            at < 0.0
        });
        // Rounding may leave a rest, which goes to the last index that can be drawn at all.
        found.or_else(|| weights.iter().rposition(|weight| *weight > 0.0)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_means_and_shares_that_they_name() {
        let mut random = Random::new(1);
        let mean = |draw: &mut dyn FnMut() -> f64| (0..100_000).map(|_| draw()).sum::<f64>() / 100_000.0;
        assert!((mean(&mut || random.exponential()) - 1.0).abs() < 0.02);
        assert!((mean(&mut || random.lognormal(-0.125, 0.5)) - 1.0).abs() < 0.02);
        assert!((mean(&mut || as_f64(random.below(5))) - 2.0).abs() < 0.02);
        assert!((mean(&mut || as_f64(random.pick(&[0.0, 3.0, 1.0, 0.0]))) - 1.25).abs() < 0.02);
    }
}
