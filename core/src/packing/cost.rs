//! What a place costs. Lower is better.

/// A cost in millionths of what a memory slice of an 80 GB GPU is worth when no profile is scarcer than another. It may be
/// negative: a place that fills a GPU up, or spares a cut, is better than none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cost(pub i64);

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}
