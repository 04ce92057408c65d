//! The fleet finds the same places as a search of every GPU.

use super::*;
use crate::contract::Shape;
use crate::inventory::{GpuInventory, NodeInventory, Occupancy, PlacedSlice};
use crate::kind::Kind;
use crate::mig::{GiProfileId, Placement, catalog};
use crate::names::SliceId;
use crate::packing::fit;
use crate::testing::{gpu_uuid, h100_shape, mig_table, request, request_sized};
use crate::units::SizeGb;
use proptest::prelude::*;

fn exact(profile: &str) -> ContainerRequest {
    ContainerRequest::exact(profile.parse().unwrap())
}

/// A node with one GPU that is cut like the fleet's GPU.
fn node(fleet: &Fleet, gpu: FleetGpu, model: &str) -> NodeInventory {
    let cut = fleet.cut(gpu).unwrap();
    let slice = |place, occupancy| PlacedSlice { shape: Shape::mig(fleet.instance(gpu, place)), occupancy };
    let held = cut.held.iter().map(|place| slice(place, Occupancy::Taken));
    let idle = |place: PlaceId| slice(place, Occupancy::Idle(SliceId::new(format!("s{}", place.index()))));
    let gpu = GpuInventory {
        uuid: gpu_uuid(0),
        model: model.to_owned(),
        memory: catalog::by_name(model).unwrap().memory,
        beside: crate::units::MemoryMib(0),
        undivided: true,
        mps_shares: None,
        rule: crate::contract::GpuRule::default(),
        layout: None,
        kinds: vec![Kind::Mig],
        table: mig_table(model),
        slices: held.chain(cut.idle.iter().map(idle)).collect(),
    };
    NodeInventory { gpus: vec![gpu], neutral_up_to: Some(SizeGb(278)), ..NodeInventory::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn the_best_place_is_the_cheapest_of_all_gpus(
        steps in prop::collection::vec((0_usize..9, 0_usize..64, 0_u8..4), 1..120)
    ) {
        let models = ["H100-80GB", "H100-80GB", "H100-80GB", "A30-24GB", "H200-141GB"];
        let mut fleet = Fleet::default();
        let gpus: Vec<_> = models.iter().map(|m| (fleet.add(&mig_table(m), [], []).unwrap(), *m)).collect();
        let asks: Vec<_> = ["1g.10gb", "3g.40gb", "7g.80gb", "1g.10gb+me", "2g.12gb"].map(exact).into_iter()
            .chain(["nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.20gb", "nvidia.com/mig-1g.5gb"]
                .map(|name| request(name, 1).containers.remove(0)))
            .chain([ContainerRequest { kinds: vec![Kind::Mig], ..request("kerf.dev/gpu-14gb", 1).containers.remove(0) }])
            .collect();
        let mut running = Vec::new();
        for (ask, leave, kind) in steps {
            if kind == 0 && !running.is_empty() {
                let (gpu, place) = running.swap_remove(leave % running.len());
                fleet.release(gpu, place);
                continue;
            }
            let class = fleet.class(&asks[ask]);
            let best = fleet.best(class);
            let mut document = request_sized(asks[ask].resource, asks[ask].size_gb, 1);
            document.containers = vec![asks[ask].clone()];
            let costs = gpus.iter().filter_map(|(gpu, model)| fit(&node(&fleet, *gpu, model), &document, &fleet).ok());
            let cheapest = costs.map(|fit| fit.cost).min();
            prop_assert_eq!(best.map(|(_, choice)| choice.cost), cheapest);
            if let Some((gpu, choice)) = best {
                fleet.take(gpu, choice);
                running.push((gpu, choice.place));
            }
        }
    }

    #[test]
    fn a_move_opens_a_place_and_changes_nothing_before_it_is_made(
        steps in prop::collection::vec((0_usize..4, 0_usize..64, any::<bool>()), 1..80)
    ) {
        let mut fleet = Fleet::new(Terms { moves: true, ..Terms::default() });
        let gpus: Vec<_> = (0..3).map(|_| fleet.add(&mig_table("H100-80GB"), [], []).unwrap()).collect();
        let asks = ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"].map(exact);
        let mut running = Vec::new();
        for (ask, leave, leaves) in steps {
            if leaves && !running.is_empty() {
                let (gpu, place) = running.swap_remove(leave % running.len());
                fleet.release(gpu, place);
                continue;
            }
            let class = fleet.class(&asks[ask]);
            if let Some((gpu, choice)) = fleet.best(class) {
                fleet.take(gpu, choice);
                running.push((gpu, choice.place));
                continue;
            }
            let before: Vec<_> = gpus.iter().map(|gpu| fleet.cut(*gpu)).collect();
            let found = fleet.best_eviction(class, |_, _| true, |_, _| true);
            prop_assert_eq!(before, gpus.iter().map(|gpu| fleet.cut(*gpu)).collect::<Vec<_>>());
            let Some(found) = found else { continue };
            let moved = fleet.instance(found.gpu, found.victim);
            prop_assert!(moved.placement.size < fleet.instance(found.gpu, found.choice.place).placement.size);
            prop_assert_eq!(fleet.instance(found.to, found.new.place).profile, moved.profile);
            fleet.release(found.gpu, found.victim);
            for (gpu, choice) in [(found.gpu, found.choice), (found.to, found.new)] {
                let cut = fleet.cut(gpu).unwrap();
                prop_assert!(fleet.models[gpu.model].model.choice_at(cut, choice.place).is_some(), "the place is free");
                fleet.take(gpu, choice);
            }
            running.retain(|(gpu, place)| (*gpu, *place) != (found.gpu, found.victim));
            running.extend([(found.gpu, found.choice.place), (found.to, found.new.place)]);
        }
    }
}

#[test]
fn scarce_room_costs_more() {
    // Of two H100s one is empty, and one has its left half taken. A small request must not take the last place for 7g.
    let mut fleet = Fleet::default();
    fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    let class = fleet.class(&exact("4g.40gb"));
    let (first, choice) = fleet.best(class).unwrap();
    fleet.take(first, choice);
    let small = fleet.class(&exact("1g.10gb"));
    assert_eq!(fleet.best(small).unwrap().0, first);
}

#[test]
fn a_full_fleet_and_an_empty_one_have_no_fragments() {
    let whole = h100_shape("7g.80gb", 0).instance().unwrap();
    let mut fleet = Fleet::default();
    assert!(fleet.fragmentation().abs() < 1e-9, "{}", fleet.fragmentation());
    fleet.add(&mig_table("H100-80GB"), [whole], []).unwrap();
    assert!(fleet.fragmentation().abs() < 1e-9, "{}", fleet.fragmentation());
    fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    assert!(fleet.fragmentation() > 0.1, "`4g.40gb` can use a half of it");
}

#[test]
fn a_request_by_size_gets_the_gpu_with_the_least_waste() {
    let mut fleet = Fleet::default();
    let big = fleet.add(&mig_table("H200-141GB"), [], []).unwrap();
    let fitting = fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    let request = request("nvidia.com/mig-1g.10gb", 1).containers.remove(0);
    let class = fleet.class(&request);
    assert_eq!(fleet.best(class).unwrap().0, fitting);
    let larger = fleet.class(&ContainerRequest { size_gb: SizeGb(81), ..request });
    assert_eq!(fleet.best(larger).unwrap().0, big);
}

#[test]
fn a_strict_request_is_of_another_class_than_one_by_name() {
    let mut fleet = Fleet::default();
    let gpu = fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    let by_name = request("nvidia.com/mig-1g.10gb", 1).containers.remove(0);
    let strict = ContainerRequest { memory: Some(SizeGb(10).share_memory()), ..by_name.clone() };
    let compute = ContainerRequest { compute: 50.try_into().ok(), ..by_name.clone() };
    let mut profile = |request| {
        let class = fleet.class(request);
        let (_, choice) = fleet.best(class).unwrap();
        fleet.instance(gpu, choice.place).profile.to_string()
    };
    assert_eq!([&by_name, &strict, &compute].map(&mut profile), ["1g.10gb", "1g.20gb", "4g.40gb"]);
}

#[test]
fn a_gpu_with_a_fixed_layout_leaves_the_fleet() {
    let mut fleet = Fleet::default();
    let known = fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    let mut gpu = node(&fleet, known, "H100-80GB").gpus.remove(0);
    assert_eq!(gpu.join(&mut fleet, Some(known)), Some(known));
    gpu.layout = Some(Vec::new());
    assert_eq!(gpu.join(&mut fleet, Some(known)), None);
    assert!(fleet.cut(known).is_none());
}

#[test]
fn an_idle_instance_is_used_again_rather_than_one_cut() {
    let mut fleet = Fleet::default();
    for _ in 0..4 {
        fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    }
    let class = fleet.class(&exact("2g.20gb"));
    let (gpu, choice) = fleet.best(class).unwrap();
    fleet.take(gpu, choice);
    fleet.release(gpu, choice.place);
    let (again, place) = fleet.best(class).unwrap();
    assert_eq!((again, place.place, place.destroyed.is_empty()), (gpu, choice.place, true));
}

#[test]
fn a_weight_keeps_room_for_the_profile_that_it_names() {
    let opens_a_gpu = |weights: &[(&str, u32)]| {
        let weights = weights.iter().map(|(p, w)| (p.parse().unwrap(), *w)).collect();
        let mut fleet = Fleet::new(Terms { weights, ..Terms::default() });
        let right_half =
            Instance { profile: "3g.40gb".parse().unwrap(), placement: Placement { start: 4, size: 4 } };
        let whole = fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
        fleet.add(&mig_table("H100-80GB"), [right_half], []).unwrap();
        let class = fleet.class(&exact("1g.10gb"));
        fleet.best(class).unwrap().0 == whole
    };
    assert!(!opens_a_gpu(&[]), "the cut GPU is cut on");
    assert!(opens_a_gpu(&[("4g.40gb", 10_000)]), "the last room for 4g.40gb beside another is kept");
}

#[test]
fn the_first_of_equal_models_is_cut() {
    let table = mig_table("H100-80GB");
    let mut entries = table.entries().to_vec();
    entries[0].id = GiProfileId(99);
    let mut fleet = Fleet::default();
    let first = fleet.add(&table, [], []).unwrap();
    assert_ne!(fleet.add(&MigTable::new(entries), [], []).unwrap().model, first.model);
    let class = fleet.class(&exact("1g.10gb"));
    assert_eq!(fleet.best(class).unwrap().0, first);
}

#[test]
fn a_gpu_of_another_model_replaces_the_known_one() {
    let mut fleet = Fleet::default();
    let h100 = fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    assert_eq!(fleet.show(Some(h100), &mig_table("H100-80GB"), [], []), Some(h100));
    let a30 = fleet.show(Some(h100), &mig_table("A30-24GB"), [], []).unwrap();
    assert_ne!(a30, h100);
    assert_eq!(fleet.cut(h100), None);
}

#[test]
fn a_removed_gpu_is_never_cut_again() {
    let mut fleet = Fleet::default();
    let gpu = fleet.add(&mig_table("H100-80GB"), [], []).unwrap();
    let cut = fleet.cut(gpu).unwrap();
    fleet.remove(gpu);
    fleet.set(gpu, cut);
    assert_eq!(fleet.cut(gpu), None);
}
