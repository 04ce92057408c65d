//! A legal set of placed GPU instances on one GPU.

use super::{MigTable, Placement, Profile, ProfileEntry};
use thiserror::Error;

/// A GPU instance at its place on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// The instance's profile, as in `1g.10gb`.
    pub profile: Profile,
    /// The memory slices that it takes.
    pub placement: Placement,
}

/// Why a GPU instance cannot be added to a geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Illegal {
    /// The GPU's table does not have the profile.
    #[error("the GPU has no profile {0}")]
    NoSuchProfile(Profile),
    /// The profile cannot start at this memory slice.
    #[error("{0} cannot start at memory slice {1}")]
    NoSuchStart(Profile, u8),
    /// Another instance takes some of these memory slices.
    #[error("memory slices {0} are taken")]
    Taken(Placement),
    /// The GPU has too few free compute slices.
    #[error("too few compute slices are left for {0}")]
    NoCompute(Profile),
    /// The GPU already has as many instances of the profile as it can hold.
    #[error("the GPU holds no more instances of {0}")]
    TooMany(Profile),
    /// Another instance has the media engines, which only one instance can have.
    #[error("another instance has the media engines that {0} takes")]
    MediaTaken(Profile),
}

/// Placed instances that can exist together on the GPU of `table`. An illegal value of this type cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry<'t> {
    table: &'t MigTable,
    instances: Vec<Instance>,
}

impl<'t> Geometry<'t> {
    /// The geometry of a GPU without instances.
    #[must_use]
    pub fn empty(table: &'t MigTable) -> Self {
        Self { table, instances: Vec::new() }
    }

    /// The geometry of these instances; an error if they cannot exist together.
    pub fn from_instances(
        table: &'t MigTable,
        instances: impl IntoIterator<Item = Instance>,
    ) -> Result<Self, Illegal> {
        instances.into_iter().try_fold(Self::empty(table), |geometry, instance| {
            geometry.place(instance.profile, instance.placement.start)
        })
    }

    /// This geometry with one more instance.
    pub fn place(mut self, profile: Profile, start: u8) -> Result<Self, Illegal> {
        let entry = self.table.entry(profile).ok_or(Illegal::NoSuchProfile(profile))?;
        if !entry.starts.contains(&start) {
            return Err(Illegal::NoSuchStart(profile, start));
        }
        let placement = Placement { start, size: entry.size };
        self.admits(entry, placement)?;
        self.instances.push(Instance { profile, placement });
        self.instances.sort_by_key(|i| i.placement.start);
        Ok(self)
    }

    fn admits(&self, entry: &ProfileEntry, placement: Placement) -> Result<(), Illegal> {
        let profile = entry.profile;
        if self.mask() & placement.mask() != 0 {
            return Err(Illegal::Taken(placement));
        }
        if u32::from(self.compute()) + u32::from(profile.compute()) > u32::from(self.table.compute()) {
            return Err(Illegal::NoCompute(profile));
        }
        let same = self.instances.iter().filter(|i| i.profile == profile).count();
        if same >= usize::from(entry.max) {
            return Err(Illegal::TooMany(profile));
        }
        if profile.claims_media() && self.instances.iter().any(|i| i.profile.claims_media()) {
            return Err(Illegal::MediaTaken(profile));
        }
        Ok(())
    }

    /// Whether an instance of `entry` could be placed at `start` now. The caller must take `start` from the entry's own
    /// starts.
    #[must_use]
    pub fn has_room(&self, entry: &ProfileEntry, start: u8) -> bool {
        self.admits(entry, Placement { start, size: entry.size }).is_ok()
    }

    /// The instances, ordered by their starts.
    #[must_use]
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// The table of the GPU's profiles.
    #[must_use]
    pub fn table(&self) -> &'t MigTable {
        self.table
    }

    /// The taken memory slices as bits.
    #[must_use]
    pub fn mask(&self) -> u32 {
        self.instances.iter().fold(0, |mask, i| mask | i.placement.mask())
    }

    /// The number of taken compute slices.
    #[must_use]
    pub fn compute(&self) -> u8 {
        self.instances.iter().map(|i| i.profile.compute()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog;
    use super::*;
    use crate::testing::mig_table;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn p(text: &str) -> Profile {
        text.parse().unwrap()
    }

    #[test]
    fn a_full_gpu_admits_no_instance() {
        let table = mig_table("H100-80GB");
        let full = (0..7).try_fold(Geometry::empty(&table), |g, start| g.place(p("1g.10gb"), start)).unwrap();
        assert_eq!(full.clone().place(p("1g.10gb"), 6), Err(Illegal::Taken(Placement { start: 6, size: 1 })));
        assert_eq!(full.place(p("1g.10gb"), 7), Err(Illegal::NoSuchStart(p("1g.10gb"), 7)));
    }

    #[test]
    fn four_and_three_fill_a_gpu() {
        let table = mig_table("H100-80GB");
        let g = Geometry::empty(&table).place(p("4g.40gb"), 0).unwrap().place(p("3g.40gb"), 4).unwrap();
        assert_eq!((g.mask(), g.compute()), (0xff, 7));
    }

    #[test]
    fn only_one_instance_has_the_media_engines() {
        let table = mig_table("H100-80GB");
        let g = Geometry::empty(&table).place(p("1g.10gb+me"), 0).unwrap();
        assert_eq!(g.place(p("1g.10gb+me"), 1), Err(Illegal::TooMany(p("1g.10gb+me"))));
        let a30 = mig_table("A30-24GB");
        let g = Geometry::empty(&a30).place(p("1g.6gb+me"), 0).unwrap();
        assert_eq!(g.place(p("2g.12gb+me"), 2), Err(Illegal::MediaTaken(p("2g.12gb+me"))));
        let pro = mig_table("RTX-PRO-6000-96GB");
        let g = Geometry::empty(&pro).place(p("2g.48gb+me.all"), 0).unwrap();
        assert_eq!(g.clone().place(p("1g.24gb+me"), 6), Err(Illegal::MediaTaken(p("1g.24gb+me"))));
        assert!(g.place(p("1g.24gb-me"), 6).is_ok());
    }

    /// Every set of plain instances that can be made by adding one after the other.
    fn plain_sets(table: &MigTable) -> BTreeSet<Vec<Instance>> {
        let mut found = BTreeSet::from([Vec::new()]);
        let mut open = vec![Geometry::empty(table)];
        while let Some(geometry) = open.pop() {
            for entry in table.entries().iter().filter(|e| e.profile.is_plain()) {
                for start in &entry.starts {
                    let Ok(next) = geometry.clone().place(entry.profile, *start) else { continue };
                    if found.insert(next.instances().to_vec()) {
                        open.push(next);
                    }
                }
            }
        }
        found
    }

    #[test]
    fn seven_slices_have_the_known_number_of_geometries() {
        let seven = catalog::MODELS.iter().filter_map(catalog::GpuModel::mig_table);
        for table in seven.filter(|t| t.compute() == 7) {
            let sets = plain_sets(&table);
            let masks: BTreeSet<u32> =
                sets.iter().map(|set| set.iter().fold(0, |mask, i| mask | i.placement.mask())).collect();
            let counts: BTreeSet<Vec<Profile>> = sets
                .iter()
                .map(|set| {
                    let mut profiles: Vec<_> = set.iter().map(|i| i.profile).collect();
                    profiles.sort_unstable();
                    profiles
                })
                .collect();
            assert_eq!((sets.len(), masks.len(), counts.len()), (723, 192, 78));
        }
    }

    proptest! {
        #[test]
        fn placed_instances_never_overlap_and_stay_within_the_compute(
            model in any::<prop::sample::Index>(), tries in prop::collection::vec((0_usize..16, 0_u8..12), 0..24)
        ) {
            let models: Vec<_> = catalog::MODELS.iter().filter_map(catalog::GpuModel::mig_table).collect();
            let table = model.get(&models);
            let mut geometry = Geometry::empty(table);
            for (profile, start) in tries {
                let profile = table.entries()[profile % table.entries().len()].profile;
                if let Ok(next) = geometry.clone().place(profile, start) {
                    geometry = next;
                }
            }
            let slices: u32 = geometry.instances().iter().map(|i| i.placement.mask().count_ones()).sum();
            prop_assert_eq!(slices, geometry.mask().count_ones());
            prop_assert!(geometry.compute() <= table.compute());
            prop_assert!(geometry.mask() < 1 << table.axis());
        }
    }
}
