//! Tests MIG mode by architecture, resets and boots, without files and without the C interface.

use super::*;
use crate::config::{MigMode, MockConfig};
use crate::control::MockControl;
use crate::fault::Fault;
use crate::happening::{EccErrors, EccLocation};
use crate::load::{Process, ProcessKind};
use crate::model::Model;
use crate::rules::Placement;
use crate::state::MemoryLimits;

fn node(model: Model, mig: MigMode) -> MockState {
    MockState::first_boot(&MockConfig::new().gpus(model, 3, mig)).unwrap()
}

fn idle() -> MockControl {
    MockControl::new()
}

fn minors(state: &MockState) -> Vec<u32> {
    state.gpus.iter().map(|gpu| gpu.minor).collect()
}

#[test]
fn hopper_switches_mode_at_once_and_loses_it_at_boot_while_ampere_waits_and_keeps_it() {
    let mut hopper = node(Model::H200, MigMode::Disabled);
    assert_eq!(hopper.set_mig_mode(0, true, &idle()), Ok(Activation::Done));
    assert!(hopper.gpus[0].mig.current);
    hopper.create_gpu_instance(0, 19, None, &idle()).unwrap();
    hopper.reboot("boot-2");
    assert!(!hopper.gpus[0].mig.current && hopper.gpus[0].instances.is_empty());
    assert_eq!((hopper.boot_id.as_str(), hopper.last_serial), ("boot-2", 1));

    let mut ampere = node(Model::A100Gb80, MigMode::Disabled);
    assert_eq!(ampere.set_mig_mode(0, true, &idle()), Ok(Activation::ResetRequired));
    assert!(!ampere.gpus[0].mig.current && ampere.gpus[0].mig.pending);
    ampere.reboot("boot-2");
    assert!(ampere.gpus[0].mig.current);
    ampere.reboot("boot-3");
    assert!(ampere.gpus[0].mig.current);
    ampere.ampere_reset_free = true;
    assert_eq!(ampere.set_mig_mode(0, false, &idle()), Ok(Activation::Done));
}

#[test]
fn mode_stays_while_anything_uses_the_gpu() {
    let mut state = node(Model::H100, MigMode::Enabled);
    let gi = state.create_gpu_instance(0, 19, None, &idle()).unwrap();
    assert_eq!(state.set_mig_mode(0, false, &idle()), Ok(Activation::InUse));
    assert!(state.gpus[0].mig.current && !state.gpus[0].mig.pending);
    state.destroy_gpu_instance(0, gi, &idle()).unwrap();
    let busy = MockControl::new().process(Process::on_gpu(1, 0, 10));
    assert_eq!(state.set_mig_mode(0, false, &busy), Ok(Activation::InUse));
    assert_eq!(state.set_mig_mode(0, false, &idle()), Ok(Activation::Done));
    assert_eq!(Activation::InUse.code(), NvmlCode::IN_USE);
}

#[test]
fn a_mode_that_changes_at_once_changes_the_minor_number() {
    let mut state = node(Model::H100, MigMode::Disabled);
    assert_eq!(minors(&state), [0, 1, 2]);
    state.set_mig_mode(1, true, &idle()).unwrap();
    assert_eq!(minors(&state), [0, 3, 2]);
    // The number that is free now goes to the next GPU.
    state.set_mig_mode(2, true, &idle()).unwrap();
    assert_eq!(minors(&state), [0, 3, 1]);
    state.set_mig_mode(2, true, &idle()).unwrap();
    assert_eq!(minors(&state), [0, 3, 1], "no change, no new number");
    state.reboot("boot-2");
    assert_eq!(minors(&state), [0, 1, 2]);

    let mut ampere = node(Model::A30, MigMode::Disabled);
    ampere.set_mig_mode(0, true, &idle()).unwrap();
    assert_eq!(minors(&ampere), [0, 1, 2], "a pending mode changes nothing yet");
}

#[test]
fn a_reset_brings_amperes_pending_mode_into_force_and_clears_the_gpu() {
    let mut state = node(Model::A100Gb80, MigMode::Disabled);
    state.set_mig_mode(0, true, &idle()).unwrap();
    state.gpus[0].compute_mode = 3;
    let control = MockControl::new().reset("r1", 0);
    assert!(state.is_behind(&control));
    state.catch_up(&control);
    assert!(state.gpus[0].mig.current && state.gpus[0].compute_mode == 0);
    assert!(!state.gpus[1].mig.current);

    state.create_gpu_instance(0, 19, None, &idle()).unwrap();
    assert!(!state.is_behind(&control), "the same id is the same reset");
    state.catch_up(&control);
    assert_eq!(state.gpus[0].instances.len(), 1);
    state.catch_up(&control.reset("r2", 0));
    assert!(state.gpus[0].instances.is_empty() && state.gpus[0].mig.current);
}

#[test]
fn a_reset_waits_for_processes_on_the_gpu() {
    let mut state = node(Model::H100, MigMode::Enabled);
    let gi = state.create_gpu_instance(0, 19, Some(Placement { start: 0, size: 1 }), &idle()).unwrap();
    let holder = Process::on_instance(7, 0, 7, 0).of_kind(ProcessKind::Holder);
    let held = MockControl::new().reset("r1", 0).process(holder);
    assert!(!state.is_behind(&held));
    state.catch_up(&held);
    assert!(state.gpus[0].instance(gi).is_some());
    let free = MockControl { processes: Vec::new(), ..held };
    assert!(state.is_behind(&free));
    state.catch_up(&free);
    assert!(state.gpus[0].instances.is_empty());
    assert!(state.gpus[0].mig.current, "a reset is no boot: the driver keeps Hopper's mode");
}

#[test]
fn errors_count_once_and_volatile_counts_end_with_a_reset() {
    let mut state = node(Model::H100, MigMode::Enabled);
    let sram = EccErrors { location: EccLocation::Sram, count: 4, ..EccErrors::double_bit("e2", 0) };
    let control = MockControl::new().ecc(EccErrors::double_bit("e1", 0)).ecc(sram);
    let nowhere = control.clone().ecc(EccErrors::double_bit("e3", 9)).fault(Fault::gpu_lost(1));
    assert!(state.is_behind(&control));
    state.catch_up(&control);
    state.catch_up(&nowhere);
    assert!(!state.is_behind(&nowhere));
    let ecc = state.gpus[0].ecc;
    assert_eq!((ecc.volatile.dram.uncorrected, ecc.volatile.sram.uncorrected), (1, 4));
    assert_eq!((ecc.volatile, ecc.remap_pending), (ecc.aggregate, true));

    state.catch_up(&nowhere.reset("r1", 0));
    let after = state.gpus[0].ecc;
    assert_eq!((after.volatile.dram.uncorrected, after.aggregate), (0, ecc.aggregate));
    assert!(!after.remap_pending);
    state.reboot("boot-2");
    assert_eq!(state.gpus[0].ecc.aggregate, ecc.aggregate);
}

#[test]
fn memory_limits_end_with_a_boot() {
    let mut state = node(Model::L4, MigMode::Disabled);
    let limits = MemoryLimits { soft: 1, hard: 2 };
    state.gpus[0].set_memory_limits("/sys/fs/cgroup/a", limits).unwrap();
    state.catch_up(&idle().reset("r1", 0));
    assert_eq!(state.gpus[0].memory_limits_of("/sys/fs/cgroup/a", &idle()), Ok((limits, 0)));
    state.reboot("boot-2");
    assert_eq!(state.gpus[0].memory_limits_of("/sys/fs/cgroup/a", &idle()), Err(NvmlCode::NOT_FOUND));
}
