//! Tests that core and the mock of NVML accept the same sets of instances, on every MIG model. The mock's library
//! shares no code with core; only this test uses both.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::HashSet;

use kerf_core::mig::catalog::{GpuModel, by_name, by_product, compare};
use kerf_core::mig::{
    ComputeGeometry, ComputeIllegal, Geometry, GiProfileId, Illegal, Instance, MigTable, Profile,
    ProfileEntry,
};
use kerf_core::units::MemoryMib;
use kerf_nvml_mock::{MigMode, MockConfig, MockControl, MockState, Model, NvmlCode, Placement};
use proptest::prelude::*;

/// A node with one GPU, called without the C interface.
struct Gpu {
    node: MockState,
    control: MockControl,
}

impl Gpu {
    fn new(model: Model) -> Gpu {
        let config = MockConfig::new().gpus(model, 1, MigMode::Enabled);
        Gpu { node: MockState::first_boot(&config).unwrap(), control: MockControl::new() }
    }

    fn create(&mut self, entry: &ProfileEntry, start: Option<u8>) -> Result<u32, NvmlCode> {
        let place = start.map(|start| Placement { start: start.into(), size: entry.size.into() });
        self.node.create_gpu_instance(0, entry.id.0, place, &self.control)
    }

    fn destroy(&mut self, serial: u32) {
        self.node.destroy_gpu_instance(0, serial, &self.control).unwrap();
    }

    /// The instances in core's types, by their start.
    fn instances(&self, table: &MigTable) -> Vec<Instance> {
        let there = &self.node.gpus[0].instances;
        let mut found: Vec<Instance> = there
            .iter()
            .map(|gi| {
                let entry = table.entries().iter().find(|e| e.id.0 == gi.profile_id).unwrap();
                Instance { profile: entry.profile, placement: place(gi.placement) }
            })
            .collect();
        found.sort_by_key(|instance| instance.placement.start);
        found
    }
}

fn place(placement: Placement) -> kerf_core::mig::Placement {
    let [start, size] = [placement.start, placement.size].map(|n| u8::try_from(n).unwrap());
    kerf_core::mig::Placement { start, size }
}

fn with_mig() -> Vec<Model> {
    Model::ALL.into_iter().filter(|model| model.has_mig()).collect()
}

/// The catalog's model of the simulated GPU, found in the agent's way.
fn in_catalog(model: Model) -> &'static GpuModel {
    by_product(model.product_name(), MemoryMib(model.total_mib())).unwrap()
}

fn table(model: Model) -> MigTable {
    in_catalog(model).mig_table().unwrap()
}

/// The table that an agent would read from the mock.
fn table_of_mock(model: Model) -> MigTable {
    let entries = model.profiles().iter().map(|p| ProfileEntry {
        id: GiProfileId(p.id),
        profile: p.name.parse().unwrap(),
        memory: MemoryMib(p.memory_mib),
        size: u8::try_from(p.memory_slices).unwrap(),
        starts: p.starts.iter().map(|start| u8::try_from(*start).unwrap()).collect(),
        max: u8::try_from(p.max_instances).unwrap(),
    });
    MigTable::new(entries.collect())
}

#[test]
fn the_catalog_and_the_mock_have_the_same_models_by_the_same_names() {
    for model in Model::ALL {
        let name = serde_json::to_value(model).unwrap();
        assert_eq!(in_catalog(model).name, name, "{model:?}");
        assert_eq!(by_name(name.as_str().unwrap()).unwrap().mig_table().is_some(), model.has_mig());
    }
    assert_eq!(kerf_core::mig::catalog::MODELS.len(), Model::ALL.len());
}

#[test]
fn the_catalog_agrees_with_the_mock_on_every_profile() {
    for model in with_mig() {
        assert_eq!(compare(in_catalog(model), &table_of_mock(model)), [], "{model:?}");
    }
}

/// Tries every instance on every reachable set: core and the mock must agree. So every set that one of them reaches by
/// some order is reached by the other by every order.
fn walk(gpu: &mut Gpu, geometry: &Geometry<'_>, seen: &mut HashSet<Vec<Instance>>) {
    for entry in geometry.table().entries() {
        for start in 0..=geometry.table().axis() {
            let ours = geometry.clone().place(entry.profile, start);
            let theirs = gpu.create(entry, Some(start));
            let code = ours.as_ref().err().map(|why| match why {
                Illegal::NoSuchProfile(_) | Illegal::NoSuchStart(..) => NvmlCode::INVALID_ARGUMENT,
                _ => NvmlCode::INSUFFICIENT_RESOURCES,
            });
            assert_eq!(theirs.err(), code, "{} at {start} beside {:?}", entry.profile, geometry.instances());
            let (Ok(next), Ok(serial)) = (ours, theirs) else { continue };
            if seen.insert(next.instances().to_vec()) {
                walk(gpu, &next, seen);
            }
            gpu.destroy(serial);
        }
    }
}

#[test]
fn every_reachable_set_is_the_same_by_core_and_by_the_mock() {
    for model in with_mig() {
        let table = table(model);
        let mut seen = HashSet::from([Vec::new()]);
        walk(&mut Gpu::new(model), &Geometry::empty(&table), &mut seen);
        // The numbers were counted in a separate program, by choosing among all placed instances.
        let expected = match table.axis() {
            4 => 76,
            12 => 1009,
            _ => 2319,
        };
        assert_eq!(seen.len(), expected, "{model:?}");
    }
}

/// The ids of `NVML_COMPUTE_INSTANCE_PROFILE_*`, with their sizes in compute slices.
const COMPUTE_IDS: [(u32, u8); 5] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 7)];

fn walk_compute(gpu: &mut Gpu, gi: u32, geometry: &ComputeGeometry, seen: &mut HashSet<ComputeGeometry>) {
    for (id, slices) in COMPUTE_IDS {
        for start in 0..8 {
            let ours = geometry.clone().place(slices, start);
            let wanted = Placement { start: start.into(), size: slices.into() };
            let theirs = gpu.node.create_compute_instance(0, gi, id, Some(wanted));
            let code = ours.as_ref().err().map(|why| match why {
                ComputeIllegal::NotOffered(..) | ComputeIllegal::NoSuchStart(..) => {
                    NvmlCode::INVALID_ARGUMENT
                }
                ComputeIllegal::Taken(..) => NvmlCode::INSUFFICIENT_RESOURCES,
            });
            assert_eq!(theirs.err(), code, "{slices}c at {start} in {geometry:?}");
            let (Ok(next), Ok(serial)) = (ours, theirs) else { continue };
            if seen.insert(next.clone()) {
                walk_compute(gpu, gi, &next, seen);
            }
            gpu.node.destroy_compute_instance(0, serial, &gpu.control).unwrap();
        }
    }
}

#[test]
fn every_set_of_compute_instances_is_the_same_by_core_and_by_the_mock() {
    for model in with_mig() {
        for entry in table(model).entries() {
            let mut gpu = Gpu::new(model);
            let gi = gpu.create(entry, Some(entry.starts[0])).unwrap();
            let mut seen = HashSet::new();
            walk_compute(&mut gpu, gi, &ComputeGeometry::empty(entry.profile), &mut seen);
            assert!(!seen.is_empty(), "{model:?} {}", entry.profile);
        }
    }
}

fn any_model() -> impl Strategy<Value = Model> {
    prop::sample::select(with_mig())
}

/// One step of a random user of the driver.
#[derive(Clone, Debug)]
enum Step {
    CreateAt(prop::sample::Index, u8),
    CreateAnywhere(prop::sample::Index),
    Destroy(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (index(), 0_u8..13).prop_map(|(profile, start)| Step::CreateAt(profile, start)),
        3 => index().prop_map(Step::CreateAnywhere),
        1 => index().prop_map(Step::Destroy),
    ]
}

proptest! {
    #[test]
    fn what_core_admits_the_mock_accepts_in_any_order(
        model in any_model(),
        tries in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..40),
        order in prop::collection::vec(any::<u32>(), 12),
    ) {
        let table = table(model);
        let mut geometry = Geometry::empty(&table);
        for (profile, start) in tries {
            let entry = profile.get(table.entries());
            geometry = geometry.clone().place(entry.profile, *start.get(&entry.starts)).unwrap_or(geometry);
        }
        let mut instances: Vec<_> = geometry.instances().iter().zip(order).collect();
        instances.sort_by_key(|(_, key)| *key);
        let mut gpu = Gpu::new(model);
        for (instance, _) in instances {
            let entry = table.entry(instance.profile).unwrap();
            prop_assert!(gpu.create(entry, Some(instance.placement.start)).is_ok(), "{:?}", instance);
        }
        prop_assert_eq!(gpu.instances(&table), geometry.instances());
    }

    #[test]
    fn what_the_mock_accepts_is_a_geometry(
        model in any_model(), steps in prop::collection::vec(step(), 1..60)
    ) {
        let table = table(model);
        let mut gpu = Gpu::new(model);
        for step in steps {
            let done = match step {
                Step::CreateAt(profile, start) => gpu.create(profile.get(table.entries()), Some(start)).is_ok(),
                Step::CreateAnywhere(profile) => gpu.create(profile.get(table.entries()), None).is_ok(),
                Step::Destroy(which) => {
                    let serials: Vec<u32> = gpu.node.gpus[0].instances.iter().map(|gi| gi.serial).collect();
                    if !serials.is_empty() {
                        gpu.destroy(*which.get(&serials));
                    }
                    !serials.is_empty()
                }
            };
            if done {
                let there = gpu.instances(&table);
                let geometry = Geometry::from_instances(&table, there.iter().copied());
                prop_assert_eq!(geometry.map(|g| g.instances().to_vec()), Ok(there));
            }
        }
    }

    #[test]
    fn the_driver_finds_a_place_exactly_when_core_sees_one(
        model in any_model(), profiles in prop::collection::vec(any::<prop::sample::Index>(), 1..20)
    ) {
        let table = table(model);
        let mut gpu = Gpu::new(model);
        for profile in profiles {
            let entry = profile.get(table.entries());
            let there = gpu.instances(&table);
            let geometry = Geometry::from_instances(&table, there).unwrap();
            let room = entry.starts.iter().any(|start| geometry.has_room(entry, *start));
            prop_assert_eq!(gpu.create(entry, None).is_ok(), room, "{}", entry.profile);
        }
    }
}

/// The names of a table are what a request may name, so each must parse to itself.
#[test]
fn names_that_the_mock_gives_are_read_as_they_are_written() {
    for profile in with_mig().into_iter().flat_map(|model| model.profiles().iter()) {
        assert_eq!(profile.name.parse::<Profile>().unwrap().to_string(), profile.name);
    }
}
