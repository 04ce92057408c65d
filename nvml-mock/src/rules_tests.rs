//! Tests the rules against published layouts, and as properties over any order of creation.

use proptest::prelude::*;

use super::*;

/// Profiles by name with their starts.
type Layout = [(&'static str, u32)];

fn with_mig() -> Vec<Model> {
    Model::ALL.into_iter().filter(|model| model.has_mig()).collect()
}

fn placed(model: Model, layout: &[(&str, u32)]) -> Vec<Placed<'static>> {
    layout
        .iter()
        .map(|&(name, start)| {
            let profile = model.profile_named(name).unwrap();
            Placed { profile, placement: Placement { start, size: profile.memory_slices } }
        })
        .collect()
}

fn build(model: Model, layout: &[(&str, u32)]) -> Result<(), Refusal> {
    let wanted = placed(model, layout);
    (0..wanted.len()).try_for_each(|n| admit(model, &wanted[..n], wanted[n]))
}

#[test]
fn published_layouts_are_legal() {
    let table: [(Model, &Layout); 11] = [
        (Model::H100, &[("3g.40gb", 4), ("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3)]),
        (Model::A100Gb40, &[("4g.20gb", 0), ("3g.20gb", 4)]),
        (Model::A100Gb40, &[("1g.5gb", 6), ("2g.10gb", 4), ("4g.20gb", 0)]),
        (Model::H200, &[("2g.35gb", 0), ("2g.35gb", 2), ("2g.35gb", 4), ("1g.18gb+me", 6)]),
        (Model::H100, &[("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.20gb", 6)]),
        (Model::H100, &[("2g.20gb", 0), ("2g.20gb", 2), ("2g.20gb", 4), ("1g.20gb", 6)]),
        (Model::A30, &[("1g.6gb+me", 3), ("1g.6gb", 2), ("2g.12gb", 0)]),
        (Model::A30, &[("2g.12gb", 0), ("2g.12gb+me", 2)]),
        (Model::B200, &[("4g.90gb", 0), ("2g.45gb", 4), ("1g.23gb+me", 6)]),
        (Model::RtxPro6000, &[("2g.48gb+gfx", 6), ("1g.24gb+me", 0), ("1g.24gb-me", 3)]),
        (Model::RtxPro6000, &[("2g.48gb+me.all", 0), ("1g.24gb-me", 6), ("1g.24gb+gfx", 9)]),
    ];
    for (model, layout) in table {
        assert_eq!(build(model, layout), Ok(()), "{model:?} {layout:?}");
    }
}

#[test]
fn each_rule_refuses_for_its_own_reason() {
    let table: [(Model, &Layout, Refusal); 11] = [
        (Model::H100, &[("1g.10gb", 7)], Refusal::NoSuchPlace),
        (Model::H100, &[("2g.20gb", 6)], Refusal::NoSuchPlace),
        (Model::H100, &[("3g.40gb", 0), ("1g.10gb", 3)], Refusal::Overlap),
        (Model::H100, &[("7g.80gb", 0), ("1g.10gb", 0)], Refusal::Overlap),
        (Model::H100, &[("1g.10gb+me", 0), ("1g.10gb+me", 1)], Refusal::TooMany),
        (Model::A30, &[("1g.6gb+me", 0), ("2g.12gb+me", 2)], Refusal::MediaTaken),
        (Model::A30, &[("4g.24gb", 0), ("1g.6gb", 0)], Refusal::Overlap),
        (Model::A30, &[("1g.6gb", 4)], Refusal::NoSuchPlace),
        (Model::RtxPro6000, &[("1g.24gb", 1)], Refusal::NoSuchPlace),
        (Model::RtxPro6000, &[("1g.24gb+me", 0), ("1g.24gb+me.all", 3)], Refusal::MediaTaken),
        (Model::RtxPro6000, &[("4g.96gb+gfx", 0), ("1g.24gb-me", 9)], Refusal::Overlap),
    ];
    for (model, layout, why) in table {
        assert_eq!(build(model, layout), Err(why), "{model:?} {layout:?}");
    }
}

#[test]
fn compute_slices_bound_a_gpu_whose_memory_slices_are_not_spent() {
    // Places 0..3 and 6 leave memory slice 7 open, and 3g takes the last three compute slices.
    let all = placed(Model::H100, &[("4g.40gb", 0), ("3g.40gb", 4)]);
    let used: u32 = all.iter().map(|p| p.profile.compute_slices).sum();
    assert_eq!(used, Model::H100.compute_slices());
    // Places from the table cannot exceed it otherwise, so force the rule by hand.
    let mut greedy = Model::H100.profile_named("1g.10gb").unwrap().clone();
    greedy.compute_slices = 5;
    let wanted = Placed { profile: &greedy, placement: Placement { start: 4, size: 1 } };
    let half = placed(Model::H100, &[("3g.40gb", 0)]);
    assert_eq!(admit(Model::H100, &half, wanted), Err(Refusal::ComputeSpent));
}

/// The starts that the driver chooses for `names` in turn; `None` if it finds no room.
fn chosen(model: Model, names: &[&str]) -> Vec<Option<u32>> {
    let mut existing = Vec::new();
    names
        .iter()
        .map(|name| {
            let profile = model.profile_named(name).unwrap();
            let placement = drivers_choice(model, &existing, profile)?;
            existing.push(Placed { profile, placement });
            Some(placement.start)
        })
        .collect()
}

#[test]
fn without_a_placement_the_driver_chooses_as_the_mig_guide_shows() {
    let some = |starts: &[u32]| starts.iter().map(|&s| Some(s)).collect::<Vec<_>>();
    assert_eq!(chosen(Model::A100Gb40, &["1g.5gb"; 7]), some(&[6, 4, 5, 0, 1, 2, 3]));
    assert_eq!(chosen(Model::A100Gb40, &["3g.20gb"; 2]), some(&[4, 0]));
    assert_eq!(
        chosen(Model::A100Gb80, &["2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb+me"]),
        some(&[4, 0, 2, 6])
    );
    assert_eq!(chosen(Model::A100Gb40, &["1g.5gb", "2g.10gb", "4g.20gb"]), some(&[6, 4, 0]));
    let trapped = chosen(Model::A100Gb40, &["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]);
    assert_eq!(trapped, [Some(6), Some(4), Some(0), None]);
}

#[test]
fn instance_ids_are_those_of_the_mig_guide() {
    let id = |start, size| instance_id(Model::A100Gb40, Placement { start, size });
    assert_eq!([id(0, 8), id(0, 4), id(4, 4)], [0, 1, 2]);
    assert_eq!([id(0, 2), id(4, 2), id(6, 2)], [3, 5, 6]);
    assert_eq!([id(0, 1), id(2, 1), id(6, 1)], [7, 9, 13]);
    assert_eq!(instance_id(Model::A30, Placement { start: 3, size: 1 }), 6);
    assert_eq!(instance_id(Model::RtxPro6000, Placement { start: 6, size: 3 }), 5);
}

#[test]
fn remaining_capacity_of_an_empty_gpu_is_each_profiles_maximum() {
    for model in with_mig() {
        for profile in model.profiles() {
            assert_eq!(remaining(model, &[], profile), profile.max_instances, "{model:?} {}", profile.name);
        }
    }
}

fn attempts() -> impl Strategy<Value = (Model, Vec<(prop::sample::Index, prop::sample::Index)>)> {
    let step = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    (prop::sample::select(with_mig()), prop::collection::vec(step, 0..40))
}

proptest! {
    #[test]
    fn whatever_was_accepted_never_overlaps_and_keeps_every_bound((model, steps) in attempts()) {
        let mut existing: Vec<Placed<'_>> = Vec::new();
        for (which, place) in steps {
            let profile = &model.profiles()[which.index(model.profiles().len())];
            let places = profile.places();
            let wanted = Placed { profile, placement: places[place.index(places.len())] };
            let listed = free_places(model, &existing, profile).contains(&wanted.placement);
            let admitted = admit(model, &existing, wanted).is_ok();
            prop_assert_eq!(listed, admitted);
            if admitted {
                existing.push(wanted);
            }
        }
        let mut axis = vec![0_u32; model.memory_slices() as usize];
        for one in &existing {
            for slice in one.placement.start..one.placement.start + one.placement.size {
                axis[slice as usize] += 1;
            }
        }
        prop_assert!(axis.iter().all(|&holders| holders <= 1), "{:?}", axis);
        let compute: u32 = existing.iter().map(|one| one.profile.compute_slices).sum();
        prop_assert!(compute <= model.compute_slices());
        prop_assert!(existing.iter().filter(|one| one.profile.media_extension).count() <= 1);
        let mut ids: Vec<u32> = existing.iter().map(|one| instance_id(model, one.placement)).collect();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), existing.len(), "ids are distinct");
    }

    #[test]
    fn the_order_of_creation_does_not_matter((model, steps) in attempts(), seed in any::<u64>()) {
        let mut existing: Vec<Placed<'_>> = Vec::new();
        for (which, _) in steps {
            let profile = &model.profiles()[which.index(model.profiles().len())];
            if let Some(placement) = drivers_choice(model, &existing, profile) {
                existing.push(Placed { profile, placement });
            }
        }
        let mut shuffled = existing.clone();
        let turn = usize::try_from(seed % 97).unwrap();
        if !shuffled.is_empty() {
            let by = turn % shuffled.len();
            shuffled.rotate_left(by);
            shuffled.reverse();
        }
        for n in 0..shuffled.len() {
            prop_assert_eq!(admit(model, &shuffled[..n], shuffled[n]), Ok(()));
        }
    }
}
