//! Placements of fixed layouts: one legal placement if there is one.

use super::*;
use crate::mig::{Extras, Geometry, GiProfileId, catalog};
use crate::units::{MemoryMib, SizeGb};
use proptest::prelude::*;

/// A row of a random table: compute slices, memory slices, starts as bits, maximum, extras.
type Row = (u8, u8, u8, u8, u8);

/// A table with one profile of full size and these rows, on an axis of eight.
fn random_table(rows: &[Row]) -> MigTable {
    let entry = |(id, row): (u32, &Row)| {
        let (compute, size, starts, max, extras) = *row;
        let extras = if extras == 0 { Extras::Media } else { Extras::Plain };
        ProfileEntry {
            id: GiProfileId(id),
            profile: Profile::plain(compute, SizeGb(id + 1)).with_extras(extras),
            memory: MemoryMib(1024),
            size,
            starts: (0..=8 - size).filter(|start| starts >> start & 1 == 1).collect(),
            max,
        }
    };
    let full = [(7, 8, 1, 1, 1)];
    MigTable::new((0..).zip(full.iter().chain(rows)).map(entry).collect())
}

/// Whether these profiles can all be placed, by trying every start of each.
fn is_possible(geometry: &Geometry<'_>, profiles: &[Profile]) -> bool {
    let Some((first, rest)) = profiles.split_first() else { return true };
    let starts = geometry.table().entry(*first).map(|entry| entry.starts.clone()).unwrap_or_default();
    let next = |start: u8| geometry.clone().place(*first, start).ok();
    starts.into_iter().filter_map(next).any(|next| is_possible(&next, rest))
}

fn many(profiles: &[(Profile, u32)]) -> Vec<Profile> {
    let mut all: Vec<_> = profiles.iter().flat_map(|(p, count)| (0..*count).map(|_| *p)).collect();
    all.sort_unstable();
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn a_placement_is_legal_or_there_is_none(
        rows in prop::collection::vec((1_u8..4, 1_u8..5, any::<u8>(), 1_u8..5, 0_u8..4), 1..6),
        counts in prop::collection::vec(0_u32..4, 6),
    ) {
        let table = random_table(&rows);
        let profiles = table.entries().iter().map(|entry| entry.profile).zip(counts).filter(|(_, n)| *n > 0);
        let profiles: Vec<_> = profiles.collect();
        let possible = is_possible(&Geometry::empty(&table), &many(&profiles));
        let placed = place(&table, &profiles);
        prop_assert_eq!(placed.is_some(), possible);
        if let Some(placed) = placed {
            prop_assert!(Geometry::from_instances(&table, placed.clone()).is_ok());
            let mut found: Vec<_> = placed.iter().map(|instance| instance.profile).collect();
            found.sort_unstable();
            prop_assert_eq!(found, many(&profiles));
        }
    }
}

#[test]
fn every_model_can_be_laid_out_full_of_each_of_its_profiles() {
    for table in catalog::MODELS.iter().filter_map(catalog::GpuModel::mig_table) {
        for entry in table.entries() {
            let layout = [(entry.profile, u32::from(entry.max))];
            assert_eq!(place(&table, &layout).map(|placed| placed.len()), Some(usize::from(entry.max)));
            assert_eq!(place(&table, &[(entry.profile, u32::from(entry.max) + 1)]), None);
        }
    }
}

#[test]
fn compute_slices_and_media_engines_are_limited_beside_memory_slices() {
    let can = |rows: &[Row], counts: &[u32]| {
        let table = random_table(rows);
        let others = table.entries().iter().skip(1).map(|entry| entry.profile);
        place(&table, &others.zip(counts.iter().copied()).collect::<Vec<_>>()).is_some()
    };
    let half = (4, 4, 0b1_0001, 2, 1);
    assert!(can(&[half], &[1]) && !can(&[half], &[2]), "seven compute slices are too few");
    let media = [(1, 1, 0b1, 1, 0), (1, 1, 0b10, 1, 0)];
    assert!(can(&media, &[1, 0]) && !can(&media, &[1, 1]));
}

#[test]
fn what_was_hopeless_once_stays_hopeless() {
    // Two of the three profiles may have either memory slice, in either order.
    let table = random_table(&[(1, 1, 0b11, 1, 1), (1, 1, 0b11, 1, 1), (1, 1, 0b1, 1, 1)]);
    let profiles: Vec<_> = table.entries().iter().skip(1).map(|entry| (entry.profile, 1)).collect();
    assert_eq!(place(&table, &profiles), None);
}

#[test]
fn an_axis_is_limited_and_no_place_is_beyond_it() {
    let can = |size, start| {
        let profile = Profile::plain(7, SizeGb(80));
        let (id, memory, starts) = (GiProfileId(0), MemoryMib(1024), vec![start]);
        let entry = ProfileEntry { id, profile, memory, size, starts, max: 1 };
        place(&MigTable::new(vec![entry]), &[(profile, 1)]).is_some()
    };
    assert!(can(16, 0) && !can(17, 0));
    assert!(can(8, 0) && !can(8, 1) && !can(8, 250));
}
