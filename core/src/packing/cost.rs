//! What a place costs. Lower is better.

use crate::mig::Geometry;
use crate::units::SizeGb;

/// A cost in millionths of an 80 GB GPU's capacity, with smaller terms for the work of cutting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cost(pub u64);

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// One idle slice destroyed costs less than any loss of capacity, and more than a cut.
pub(super) const DESTROY: Cost = Cost(16);
/// Cutting a new slice costs less than destroying one, and more than using an idle one.
pub(super) const CUT: Cost = Cost(4);

/// The capacity that a GPU loses when `after` takes the place of `before`: the mean over its plain profiles of the
/// placements that are no longer possible, as a part of the profile's maximum, times the GPU's size.
pub(super) fn lost_capacity(before: &Geometry<'_>, after: &Geometry<'_>, gpu: SizeGb) -> Cost {
    let lost = capacity_ppm(before).saturating_sub(capacity_ppm(after));
    Cost(lost * u64::from(gpu.0) / 80)
}

fn capacity_ppm(geometry: &Geometry<'_>) -> u64 {
    let profiles = geometry.table().entries().iter().filter(|e| e.profile.is_plain());
    let (mut sum, mut count) = (0, 0);
    for entry in profiles {
        let open = entry.starts.iter().filter(|start| geometry.has_room(entry, **start)).count();
        sum += 1_000_000 * u64::try_from(open).unwrap_or(0)
            / u64::try_from(entry.starts.len().max(1)).unwrap_or(1);
        count += 1;
    }
    sum / count.max(1)
}
