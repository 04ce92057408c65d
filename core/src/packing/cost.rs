//! The cost of a place; lower is better.

/// A cost, in millionths of the value of a memory slice of an 80 GB GPU while no profile is scarcer than another. It
/// may be negative, because a place that fills a GPU up or saves a cut is better than none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cost(pub i64);

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}
