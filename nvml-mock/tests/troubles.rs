//! Tests failures of drivers and GPUs through the shared library: kills, hangs, a lost GPU, memory errors. It also
//! tests what new drivers add.

#![expect(clippy::unwrap_used, reason = "a scenario fails by panicking, in functions that are no #[test]")]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use kerf_nvml_mock::{
    EccErrors, EccKind, EccLocation, Fault, KillMoment, MigMode, MockConfig, MockControl, MockFiles,
    MockState, Model, NvmlCode, Process, Xid,
};
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::NvmlError;

#[path = "raw/health.rs"]
mod health;
mod scenarios;
use health::{Limits, Raw};
use scenarios::{files, folder, init, run};

scenarios! {
    by name: [cut_one, hang_in_a_cut];
    one_gpu_hangs_once_and_the_state_says_so on MockConfig::new().gpus(Model::H100, 2, MigMode::Enabled);
    a_call_hangs_after_it_took_effect on MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled);
    calls_are_counted_while_the_control_file_asks on MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled);
    a_lost_gpu_fails_every_search_by_uuid_and_others_go_on on MockConfig::new()
        .gpus(Model::H100, 2, MigMode::Enabled);
    a_lost_gpu_ends_the_wait_for_its_events on MockConfig::new().gpus(Model::H100, 2, MigMode::Disabled);
    memory_errors_are_events_and_counts on MockConfig::new()
        .gpus(Model::H200, 2, MigMode::Disabled).gpus(Model::T4, 1, MigMode::Disabled);
    with_mig_on_only_instances_have_volatile_errors on MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled);
    capabilities_are_there_when_a_call_returns on MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled);
    cgroups_have_memory_limits on MockConfig::new().driver_version("615.43.02")
        .gpus(Model::L40S, 1, MigMode::Disabled).gpus(Model::H100, 1, MigMode::Enabled);
    older_drivers_have_no_memory_limits on MockConfig::new().gpus(Model::L40S, 1, MigMode::Disabled);
    a_gpu_without_a_fabric_says_so on MockConfig::new().gpus(Model::H200, 1, MigMode::Disabled);
}

const CREATE: &str = "nvmlDeviceCreateGpuInstance";
const SLICE: u32 = 19;

fn control(control: &MockControl) {
    control.write(&files().control).unwrap();
}

fn state() -> MockState {
    MockState::load(&files().state).unwrap()
}

fn until_hanging() -> MockState {
    loop {
        let now = state();
        if !now.hanging_now().is_empty() {
            return now;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Creates one slice; the process that is killed runs this.
fn cut_one() {
    let nvml = init().unwrap();
    Raw::from_device(&nvml.device_by_index(0).unwrap()).create(SLICE).unwrap();
}

/// Hangs in a create until the process is killed.
fn hang_in_a_cut() {
    let nvml = init().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| Raw::from_device(&nvml.device_by_index(0).unwrap()).create(SLICE).is_ok());
        until_hanging();
        std::process::exit(9);
    });
}

/// A node with one GPU, outside of any scenario.
fn node() -> (tempfile::TempDir, MockFiles) {
    let folder = tempfile::tempdir().unwrap();
    let files = MockFiles::in_folder(folder.path());
    MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled).write(&files.config).unwrap();
    (folder, files)
}

/// Slices after a process was killed at a create, and after it was restarted.
fn killed_at_a_cut(moment: KillMoment) -> [usize; 2] {
    const SIGKILL: i32 = 9;
    let (folder, files) = node();
    MockControl::new().fault(Fault::kill(CREATE, moment)).write(&files.control).unwrap();
    let slices = || MockState::load(&files.state).unwrap().slices().len();
    let killed = run("cut_one", folder.path());
    assert_eq!(killed.status.signal(), Some(SIGKILL), "{killed:?}");
    let after_kill = slices();
    let again = run("cut_one", folder.path());
    assert!(scenarios::passed(&again), "{again:?}");
    [after_kill, slices()]
}

#[test]
fn a_process_is_killed_before_its_call_takes_effect_and_not_again() {
    assert_eq!(killed_at_a_cut(KillMoment::Before), [0, 1]);
}

#[test]
fn a_process_is_killed_after_its_call_took_effect_and_not_again() {
    assert_eq!(killed_at_a_cut(KillMoment::After), [1, 2]);
}

#[test]
fn the_line_of_a_process_that_ended_in_a_hang_goes_with_the_next_hang() {
    let (folder, files) = node();
    MockControl::new().fault(Fault::hang(CREATE)).write(&files.control).unwrap();
    let pids = [(); 2].map(|()| {
        assert_eq!(run("hang_in_a_cut", folder.path()).status.code(), Some(9));
        let state = MockState::load(&files.state).unwrap();
        assert!(state.slices().is_empty() && state.hanging_now().is_empty());
        state.hanging.iter().map(|line| line.pid).collect::<Vec<_>>()
    });
    assert_eq!([pids[0].len(), pids[1].len()], [1, 1]);
    assert_ne!(pids[0], pids[1]);
}

fn one_gpu_hangs_once_and_the_state_says_so() {
    let nvml = init().unwrap();
    let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    control(&MockControl::new().fault(Fault::hang("nvmlDeviceGetMigMode").on_gpu(1).times(1)));
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| second.mig_mode().unwrap());
        let line = until_hanging().hanging.remove(0);
        assert_eq!((line.pid, line.gpu), (std::process::id(), Some(1)));
        assert_eq!(line.function, "nvmlDeviceGetMigMode");
        assert!(first.mig_mode().is_ok(), "the other GPU goes on");
        assert!(second.mig_mode().is_ok(), "and so does the second call");
        assert!(!hanging.is_finished());
        control(&MockControl::new());
        hanging.join().unwrap();
    });
    assert!(state().hanging.is_empty());
}

fn a_call_hangs_after_it_took_effect() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    control(&MockControl::new().fault(Fault::hang(CREATE).after_effect()));
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| Raw::from_device(&gpu).create(SLICE).is_ok());
        assert_eq!(until_hanging().slices().len(), 1);
        control(&MockControl::new());
        assert!(hanging.join().unwrap());
    });
}

fn calls_are_counted_while_the_control_file_asks() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    gpu.uuid().unwrap();
    let refuse = Fault::new("nvmlDeviceGetUUID", NvmlCode::UNKNOWN).times(1);
    control(&MockControl::new().count_calls().fault(refuse));
    assert!(gpu.uuid().is_err(), "a call that fails counts too");
    gpu.uuid().unwrap();
    gpu.mig_mode().unwrap();
    control(&MockControl::new());
    gpu.uuid().unwrap();
    let calls = state().calls;
    let calls: Vec<(&str, u64)> = calls.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(calls, [("nvmlDeviceGetMigMode", 1), ("nvmlDeviceGetUUID", 2)]);
}

fn a_lost_gpu_fails_every_search_by_uuid_and_others_go_on() {
    let nvml = init().unwrap();
    let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    let (first_uuid, second_uuid) = (first.uuid().unwrap(), second.uuid().unwrap());
    let raw = Raw::from_device(&second);
    let instance = raw.create(SLICE).unwrap();
    let mig = raw.create_compute(instance, 0).unwrap();
    let mig_uuid = mig.uuid().unwrap();

    control(&MockControl::new().fault(Fault::gpu_lost(1)));
    let lost =
        |outcome: Result<(), NvmlError>| assert!(matches!(outcome, Err(NvmlError::GpuLost)), "{outcome:?}");
    lost(nvml.device_by_index(1).map(|_| ()));
    lost(nvml.device_by_uuid(second_uuid.as_str()).map(|_| ()));
    lost(nvml.device_by_uuid(mig_uuid.as_str()).map(|_| ()));
    lost(nvml.device_by_pci_bus_id("0000:1f:00.0").map(|_| ()));
    lost(second.mig_mode().map(|_| ()));
    lost(second.memory_info().map(|_| ()));
    lost(second.running_compute_processes().map(|_| ()));
    lost(second.mig_device_by_index(0).map(|_| ()));
    assert_eq!((raw.create(SLICE), raw.instances(SLICE)), (Err(15), Err(15)));
    assert_eq!((raw.instance_info(instance), mig.uuid()), (15, Err(15)));

    assert_eq!(nvml.device_count().unwrap(), 2);
    lost(nvml.device_by_uuid(first_uuid.as_str()).map(|_| ()));
    lost(nvml.device_by_uuid("GPU-0").map(|_| ()));
    assert_eq!(nvml.device_by_pci_bus_id("0000:1b:00.0").unwrap().index().unwrap(), 0);
    assert_eq!(nvml.device_by_index(0).unwrap().uuid().unwrap(), first_uuid);
    assert!(Raw::from_device(&first).create(SLICE).is_ok());
    control(&MockControl::new());
    assert_eq!(raw.instances(SLICE), Ok(1), "and it comes back as it was");
    assert_eq!(mig.uuid(), Ok(mig_uuid));
}

fn a_lost_gpu_ends_the_wait_for_its_events() {
    let nvml = init().unwrap();
    let [first, second] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    let sets = [first, second].map(|gpu| {
        gpu.register_events(EventTypes::CRITICAL_XID_ERROR, nvml.create_event_set().unwrap()).unwrap()
    });
    let fell = Xid { id: "x".to_owned(), gpu: 1, xid: 79, gi: None, ci: None };
    control(&MockControl { xids: vec![fell], ..MockControl::new() }.fault(Fault::gpu_lost(1)));
    assert!(sets[1].wait(1000).is_ok(), "its last event comes first");
    assert!(matches!(sets[1].wait(60_000), Err(NvmlError::GpuLost)));
    assert!(matches!(sets[0].wait(1), Err(NvmlError::Timeout)), "a set without it goes on");
}

fn memory_errors_are_events_and_counts() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(1).unwrap();
    let raw = Raw::from_device(&gpu);
    assert_eq!((raw.total_ecc(1, 0), raw.total_ecc(2, 0), raw.total_ecc(0, 2)), (Ok(0), Err(2), Err(2)));
    assert_eq!((raw.ecc_at(1, 0, 3), raw.ecc_at(1, 0, 8)), (Err(3), Err(2)));

    let set =
        gpu.register_events(EventTypes::DOUBLE_BIT_ECC_ERROR, nvml.create_event_set().unwrap()).unwrap();
    let corrected = EccErrors { kind: EccKind::Corrected, count: 5, ..EccErrors::double_bit("e1", 1) };
    let mut now = MockControl::new().ecc(corrected).ecc(EccErrors::double_bit("e2", 1));
    now = now.ecc(EccErrors::double_bit("e3", 2));
    control(&now);
    let event = set.wait(5000).unwrap();
    assert_eq!((event.event_type, event.device.index().unwrap()), (EventTypes::DOUBLE_BIT_ECC_ERROR, 1));
    assert!(matches!(set.wait(1), Err(NvmlError::Timeout)), "neither the corrected ones nor another GPU's");

    assert_eq!((raw.total_ecc(0, 0), raw.total_ecc(1, 0), raw.total_ecc(1, 1)), (Ok(5), Ok(1), Ok(1)));
    assert_eq!((raw.ecc_at(1, 0, 2), raw.ecc_at(1, 0, 7)), (Ok(1), Ok(0)));
    assert_eq!((raw.remapped_rows(), raw.retired_pages(1)), (Ok([0, 1, 1, 0]), Err(3)));
    let t4 = Raw::from_device(&nvml.device_by_index(2).unwrap());
    assert_eq!((t4.remapped_rows(), t4.retired_pages(0)), (Err(3), Ok((vec![], true))));
    assert_eq!((t4.retired_pages(1).unwrap().0.len(), t4.retired_pages(2)), (1, Err(2)));

    control(&now.reset("r1", 1).reset("r2", 2));
    assert_eq!((raw.total_ecc(1, 0), raw.total_ecc(1, 1)), (Ok(0), Ok(1)));
    assert_eq!(raw.remapped_rows(), Ok([0, 1, 0, 0]));
    assert!(!t4.retired_pages(1).unwrap().1);
}

fn with_mig_on_only_instances_have_volatile_errors() {
    let nvml = init().unwrap();
    let gpu = Raw::from_device(&nvml.device_by_index(0).unwrap());
    let [hit, other] = [(); 2].map(|()| gpu.create_compute(gpu.create(SLICE).unwrap(), 0).unwrap());
    let gi =
        state().gpus[0].instances.iter().find(|one| one.compute[0].uuid == hit.uuid().unwrap()).unwrap().id;
    let sram = EccErrors { location: EccLocation::Sram, gi: Some(gi), ..EccErrors::double_bit("e1", 0) };
    control(&MockControl::new().ecc(sram));
    assert_eq!((gpu.total_ecc(1, 0), gpu.total_ecc(1, 1)), (Err(3), Ok(1)));
    assert_eq!((hit.total_ecc(1, 0), hit.ecc_at(1, 0, 7), other.total_ecc(1, 0)), (Ok(1), Ok(1), Ok(0)));
    assert_eq!((hit.ecc_at(1, 0, 2), hit.total_ecc(1, 1), hit.total_ecc(0, 0)), (Err(3), Err(3), Err(3)));
}

fn capabilities_are_there_when_a_call_returns() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let capabilities = scenarios::proc_of(&folder()).join("driver/nvidia/capabilities");
    assert!(capabilities.join("mig/config").is_file());
    let raw = Raw::from_device(&gpu);
    raw.create_compute(raw.create(SLICE).unwrap(), 0).unwrap();
    let access = std::fs::read_to_string(capabilities.join("gpu0/mig/gi13/ci0/access")).unwrap();
    let minor = kerf_nvml_mock::capability_minor(0, 13, Some(0)).unwrap();
    assert!(access.starts_with(&format!("DeviceFileMinor: {minor}\n")), "{access}");
    control(&MockControl::new().reset("r1", 0));
    assert_eq!(gpu.set_mig_mode(false).unwrap(), 0);
    let minor = gpu.minor_number().unwrap();
    assert!(minor != 0 && !capabilities.join("gpu0").exists());
    assert!(capabilities.join(format!("gpu{minor}/mig")).is_dir());
}

fn cgroups_have_memory_limits() {
    const GIB: u64 = 1 << 30;
    let nvml = init().unwrap();
    let limits = Limits::open(&scenarios::library());
    let [whole, cut] = [0, 1].map(|index| Raw::from_device(&nvml.device_by_index(index).unwrap()));
    let cgroup = folder().join("pod");
    std::fs::create_dir_all(cgroup.join("container")).unwrap();
    assert_eq!(limits.get(&whole, &cgroup), Err(6));
    limits.set(&whole, &cgroup, 4 * GIB, 8 * GIB).unwrap();
    let inside = Process::on_gpu(41, 0, 512).in_cgroup(cgroup.join("container").to_str().unwrap());
    let outside = Process::on_gpu(42, 0, 300).in_cgroup(folder().join("pod2").to_str().unwrap());
    control(&MockControl::new().process(inside).process(outside));
    assert_eq!(limits.get(&whole, &cgroup), Ok([4 * GIB, 8 * GIB, GIB / 2]));
    assert_eq!(limits.get(&whole, &cgroup.join("")), Ok([4 * GIB, 8 * GIB, GIB / 2]), "with a slash");
    assert_eq!(state().gpus[0].memory_limits[cgroup.to_str().unwrap()].hard, 8 * GIB);

    assert_eq!(limits.set(&whole, &cgroup, 9 * GIB, 8 * GIB), Err(2));
    assert_eq!(limits.set_nowhere(&whole), 2);
    assert_eq!(limits.set(&whole, Path::new("/no-such-folder"), 0, GIB), Err(17));
    assert_eq!(limits.set(&cut, &cgroup, 0, GIB), Err(3), "not with MIG on");
    let mig = cut.create_compute(cut.create(SLICE).unwrap(), 0).unwrap();
    assert_eq!((limits.set(&mig, &cgroup, 0, GIB), limits.get(&mig, &cgroup)), (Err(3), Err(3)));

    limits.set(&whole, &cgroup, 0, 8 * GIB).unwrap();
    assert_eq!(limits.get(&whole, &cgroup), Ok([0, 8 * GIB, GIB / 2]));
    limits.set(&whole, &cgroup, 0, u64::MAX).unwrap();
    assert!(state().gpus[0].memory_limits.is_empty());
}

fn older_drivers_have_no_memory_limits() {
    let nvml = init().unwrap();
    let limits = Limits::open(&scenarios::library());
    let gpu = Raw::from_device(&nvml.device_by_index(0).unwrap());
    assert_eq!((limits.set(&gpu, &folder(), 0, 1), limits.get(&gpu, &folder())), (Err(13), Err(13)));
}

fn a_gpu_without_a_fabric_says_so() {
    let nvml = init().unwrap();
    let gpu = Raw::from_device(&nvml.device_by_index(0).unwrap());
    let codes = [0x0200_0024, 0x0300_0028, 0x0100_0024, 0x0200_0028, 0].map(|version| gpu.fabric(version));
    assert_eq!(codes, [0, 0, 25, 25, 25]);
}
