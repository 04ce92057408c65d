//! Tests the life of instances, without files and without the C interface.

use super::*;
use crate::config::{MigMode, MockConfig};
use crate::load::Process;

fn node(model: Model, mig: MigMode) -> MockState {
    MockState::first_boot(&MockConfig::new().gpus(model, 2, mig)).unwrap()
}

fn idle() -> MockControl {
    MockControl::new()
}

#[expect(clippy::unnecessary_wraps, reason = "every caller needs the option")]
fn placement(start: u32, size: u32) -> Option<Placement> {
    Some(Placement { start, size })
}

fn cut(state: &mut MockState, profile: &str, start: u32) -> Outcome<u32> {
    let profile = state.gpus[0].model.profile_named(profile).unwrap();
    state.create_gpu_instance(0, profile.id, placement(start, profile.memory_slices), &idle())
}

#[test]
fn a_cut_that_does_not_fit_lacks_resources_and_a_wrong_place_is_a_wrong_argument() {
    let mut state = node(Model::H100, MigMode::Enabled);
    cut(&mut state, "3g.40gb", 4).unwrap();
    assert_eq!(cut(&mut state, "7g.80gb", 0), Err(NvmlCode::INSUFFICIENT_RESOURCES));
    assert_eq!(cut(&mut state, "1g.10gb", 7), Err(NvmlCode::INVALID_ARGUMENT));
    assert_eq!(state.create_gpu_instance(0, 77, placement(0, 1), &idle()), Err(NvmlCode::INVALID_ARGUMENT));
    assert_eq!(state.create_gpu_instance(9, 19, placement(0, 1), &idle()), Err(NvmlCode::INVALID_ARGUMENT));
    assert_eq!(state.gpus[0].instances.len(), 1);
    assert!(state.gpus[1].instances.is_empty());
}

#[test]
fn a_cut_by_name_makes_an_instance_with_all_of_it_in_one_part() {
    let mut state = node(Model::A100Gb80, MigMode::Enabled);
    for profile in ["3g.40gb", "2g.20gb", "1g.10gb"] {
        state.cut(1, profile).unwrap();
    }
    assert_eq!(state.cut(1, "7g.80gb"), Err(NvmlCode::INSUFFICIENT_RESOURCES));
    assert_eq!(state.cut(1, "1g.5gb"), Err(NvmlCode::INVALID_ARGUMENT));
    let slices: Vec<_> =
        state.slices().into_iter().map(|s| (s.gpu_index, s.profile, s.mig_uuids.len())).collect();
    assert_eq!(slices.len(), 3);
    assert!(slices.iter().all(|(gpu, _, parts)| (*gpu, *parts) == (1, 1)), "{slices:?}");
}

#[test]
fn nothing_is_cut_while_mig_mode_is_off() {
    let mut state = node(Model::H100, MigMode::Disabled);
    assert_eq!(cut(&mut state, "1g.10gb", 0), Err(NvmlCode::NOT_SUPPORTED));
    let mut whole = node(Model::L4, MigMode::Enabled);
    assert!(!whole.gpus[0].mig.current);
    assert_eq!(whole.create_gpu_instance(0, 19, None, &idle()), Err(NvmlCode::NOT_SUPPORTED));
    assert_eq!(whole.set_mig_mode(0, true, &idle()), Err(NvmlCode::NOT_SUPPORTED));
}

#[test]
fn a_gpu_instance_goes_only_after_its_compute_instances() {
    let mut state = node(Model::A100Gb40, MigMode::Enabled);
    let gi = cut(&mut state, "2g.10gb", 2).unwrap();
    let ci = state.create_compute_instance(0, gi, 1, None).unwrap();
    assert_eq!(state.destroy_gpu_instance(0, gi, &idle()), Err(NvmlCode::IN_USE));
    state.destroy_compute_instance(0, ci, &idle()).unwrap();
    state.destroy_gpu_instance(0, gi, &idle()).unwrap();
    assert_eq!(state.destroy_gpu_instance(0, gi, &idle()), Err(NvmlCode::NOT_FOUND));
    assert_eq!(state.destroy_compute_instance(0, ci, &idle()), Err(NvmlCode::NOT_FOUND));
}

#[test]
fn a_process_keeps_its_instance_and_only_its_instance() {
    let mut state = node(Model::H100, MigMode::Enabled);
    let [held, idle_one] = [0, 1].map(|start| {
        let gi = cut(&mut state, "1g.10gb", start).unwrap();
        (gi, state.create_compute_instance(0, gi, 0, None).unwrap())
    });
    let control = MockControl::new().process(Process::on_instance(7, 0, 7, 512));
    assert_eq!(state.destroy_compute_instance(0, held.1, &control), Err(NvmlCode::IN_USE));
    assert_eq!(state.destroy_gpu_instance(0, held.0, &control), Err(NvmlCode::IN_USE));
    state.destroy_compute_instance(0, idle_one.1, &control).unwrap();
    state.destroy_gpu_instance(0, idle_one.0, &control).unwrap();
}

#[test]
fn a_holder_of_the_gpu_itself_stops_a_cut() {
    let mut state = node(Model::H100, MigMode::Enabled);
    let control = MockControl::new().process(Process::on_gpu(7, 0, 0));
    assert_eq!(state.create_gpu_instance(0, 19, placement(0, 1), &control), Err(NvmlCode::IN_USE));
    assert!(state.create_gpu_instance(1, 19, placement(0, 1), &control).is_ok());
}

#[test]
fn ids_come_back_and_uuids_do_not() {
    let mut state = node(Model::H100, MigMode::Enabled);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let gi = cut(&mut state, "1g.10gb", 3).unwrap();
        let ci = state.create_compute_instance(0, gi, 0, None).unwrap();
        let instance = state.gpus[0].instance(gi).unwrap();
        assert_eq!((instance.id, instance.compute[0].id, instance.compute[0].mig_index), (10, 0, 0));
        seen.push(instance.compute[0].uuid.clone());
        state.destroy_compute_instance(0, ci, &idle()).unwrap();
        state.destroy_gpu_instance(0, gi, &idle()).unwrap();
    }
    seen.dedup();
    assert_eq!(seen.len(), 3);
}

#[test]
fn compute_instances_share_the_slices_of_their_gpu_instance() {
    let mut state = node(Model::A100Gb40, MigMode::Enabled);
    let gi = cut(&mut state, "4g.20gb", 0).unwrap();
    state.create_compute_instance(0, gi, 1, placement(2, 2)).unwrap();
    assert_eq!(state.create_compute_instance(0, gi, 3, None), Err(NvmlCode::INSUFFICIENT_RESOURCES));
    assert_eq!(state.create_compute_instance(0, gi, 1, placement(1, 2)), Err(NvmlCode::INVALID_ARGUMENT));
    assert_eq!(
        state.create_compute_instance(0, gi, 0, placement(3, 1)),
        Err(NvmlCode::INSUFFICIENT_RESOURCES)
    );
    assert_eq!(state.create_compute_instance(0, gi, 4, None), Err(NvmlCode::INVALID_ARGUMENT));
    state.create_compute_instance(0, gi, 0, None).unwrap();
    state.create_compute_instance(0, gi, 0, None).unwrap();
    let instance = state.gpus[0].instance(gi).unwrap();
    let starts: Vec<u32> = instance.compute.iter().map(|compute| compute.placement.start).collect();
    assert_eq!(starts, [2, 0, 1]);
}
