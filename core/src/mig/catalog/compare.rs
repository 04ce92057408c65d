//! Finds differences between the catalog and NVML for one GPU. NVML is right, and the agent reports the difference to
//! the operator.

use super::GpuModel;
use crate::mig::{GiProfileId, MigTable, Profile, ProfileEntry};
use crate::units::MemoryMib;
use thiserror::Error;

/// The largest difference in a profile's memory that is accepted, in percent, because drivers change it by a few
/// percent.
const MEMORY_PERCENT: u64 = 5;

/// One difference between the catalog's table and NVML's.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Disagreement {
    /// The catalog has a profile that NVML does not list.
    #[error("NVML does not list {0}")]
    Missing(Profile),
    /// NVML lists a profile that the catalog does not have.
    #[error("NVML lists {0}, which the catalog does not list")]
    Unknown(Profile),
    /// The id that creates the profile differs.
    #[error("{profile} has id {nvml} on NVML and {catalog} in the catalog", nvml = nvml.0, catalog = catalog.0)]
    Id {
        /// The profile, by NVML's name.
        profile: Profile,
        /// The id in the catalog's table.
        catalog: GiProfileId,
        /// The id that NVML lists.
        nvml: GiProfileId,
    },
    /// The memory slices at which the profile may start differ.
    #[error("{profile} may start at memory slices {nvml:?} by NVML and at {catalog:?} by the catalog")]
    Placements {
        /// The profile, by NVML's name.
        profile: Profile,
        /// The starts in the catalog's table.
        catalog: Vec<u8>,
        /// The starts that NVML lists.
        nvml: Vec<u8>,
    },
    /// The number of memory slices that the profile takes differs.
    #[error("{profile} takes {nvml} memory slices by NVML and {catalog} by the catalog")]
    Size {
        /// The profile, by NVML's name.
        profile: Profile,
        /// The number in the catalog's table.
        catalog: u8,
        /// The number that NVML lists.
        nvml: u8,
    },
    /// The number of instances that a GPU can hold differs.
    #[error("a GPU holds {nvml} of {profile} by NVML and {catalog} by the catalog")]
    Max {
        /// The profile, by NVML's name.
        profile: Profile,
        /// The number in the catalog's table.
        catalog: u8,
        /// The number that NVML lists.
        nvml: u8,
    },
    /// The memory of an instance differs by more than drivers usually change it.
    #[error("{profile} has {nvml} by NVML and {catalog} by the catalog")]
    Memory {
        /// The profile, by NVML's name.
        profile: Profile,
        /// The memory in the catalog's table.
        catalog: MemoryMib,
        /// The memory that NVML reports.
        nvml: MemoryMib,
    },
}

/// The differences between `model` of the catalog and the table that NVML reported. A name that another driver gives to
/// a profile is no difference.
#[must_use]
pub fn compare(model: &GpuModel, nvml: &MigTable) -> Vec<Disagreement> {
    let catalog = model.mig_table().unwrap_or_default();
    let mut found = Vec::new();
    for ours in catalog.entries() {
        match nvml.entries().iter().find(|theirs| is_same(model, ours, theirs)) {
            Some(theirs) => compare_entries(ours, theirs, &mut found),
            None => found.push(Disagreement::Missing(ours.profile)),
        }
    }
    let known = |theirs: &&ProfileEntry| catalog.entries().iter().any(|ours| is_same(model, ours, theirs));
    let unknown = nvml.entries().iter().filter(|theirs| !known(theirs));
    found.extend(unknown.map(|theirs| Disagreement::Unknown(theirs.profile)));
    found
}

fn is_same(model: &GpuModel, ours: &ProfileEntry, theirs: &ProfileEntry) -> bool {
    ours.profile == theirs.profile || model.other_names().contains(&(ours.id, theirs.profile))
}

fn compare_entries(ours: &ProfileEntry, theirs: &ProfileEntry, found: &mut Vec<Disagreement>) {
    let profile = theirs.profile;
    if ours.id != theirs.id {
        found.push(Disagreement::Id { profile, catalog: ours.id, nvml: theirs.id });
    }
    if ours.starts != theirs.starts {
        let (catalog, nvml) = (ours.starts.clone(), theirs.starts.clone());
        found.push(Disagreement::Placements { profile, catalog, nvml });
    }
    if ours.size != theirs.size {
        found.push(Disagreement::Size { profile, catalog: ours.size, nvml: theirs.size });
    }
    if ours.max != theirs.max {
        found.push(Disagreement::Max { profile, catalog: ours.max, nvml: theirs.max });
    }
    let (catalog, nvml) = (ours.memory, theirs.memory);
    if catalog.0.abs_diff(nvml.0) * 100 > catalog.0 * MEMORY_PERCENT {
        found.push(Disagreement::Memory { profile, catalog, nvml });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::catalog::by_name;

    fn changed(model: &str, change: impl FnOnce(&mut Vec<ProfileEntry>)) -> Vec<String> {
        let model = by_name(model).unwrap();
        let mut entries = model.mig_table().unwrap().entries().to_vec();
        change(&mut entries);
        compare(model, &MigTable::new(entries)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_small_difference_in_memory_is_no_disagreement() {
        assert!(changed("H100-80GB", |entries| entries.reverse()).is_empty());
        assert!(changed("H100-80GB", |entries| entries[0].memory.0 -= 250).is_empty());
        let differs = |mib| !changed("RTX-PRO-6000-96GB", |entries| entries[9].memory.0 -= mib).is_empty();
        assert!(!differs(97_280 / 20) && differs(97_280 / 20 + 1));
    }

    #[test]
    fn every_difference_has_its_text() {
        let texts = changed("H100-80GB", |entries| {
            entries[0].id = GiProfileId(99);
            entries[1].profile = "1g.11gb+me".parse().unwrap();
            entries[2].starts = vec![0, 2];
            entries[3].size = 3;
            entries[4].max = 1;
            entries[5].memory = MemoryMib(30_000);
        });
        assert_eq!(
            texts,
            [
                "1g.10gb has id 99 on NVML and 19 in the catalog",
                "NVML does not list 1g.10gb+me",
                "1g.20gb may start at memory slices [0, 2] by NVML and at [0, 2, 4, 6] by the catalog",
                "2g.20gb takes 3 memory slices by NVML and 2 by the catalog",
                "a GPU holds 1 of 3g.40gb by NVML and 2 by the catalog",
                "4g.40gb has 30000Mi by NVML and 40448Mi by the catalog",
                "NVML lists 1g.11gb+me, which the catalog does not list",
            ]
        );
    }

    #[test]
    fn the_name_that_an_older_driver_gives_is_no_difference() {
        let rename = |entries: &mut Vec<ProfileEntry>| {
            for (id, name) in by_name("GB200-186GB").unwrap().other_names() {
                entries.iter_mut().find(|e| e.id == *id).unwrap().profile = *name;
            }
        };
        assert!(changed("GB200-186GB", rename).is_empty());
        let texts = changed("GB200-186GB", |entries| {
            rename(entries);
            entries[0].max = 6;
        });
        assert_eq!(texts, ["a GPU holds 6 of 1g.24gb by NVML and 7 by the catalog"]);
    }
}
