//! Tests the shared library as programs use it: loaded by path through nvml-wrapper, with raw calls through its
//! symbols.

#![expect(clippy::unwrap_used, reason = "a scenario fails by panicking, in functions that are no #[test]")]

use std::process::Output;
use std::time::{Duration, Instant};

use kerf_nvml_mock::{
    Fault, MigMode, MockConfig, MockControl, MockFiles, MockState, Model, NvmlCode, Process, ProcessKind, Xid,
};
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

mod raw;
mod scenarios;
use raw::Raw;
use scenarios::{files, init, run};

scenarios! {
    by name: [cut_all];
    gpus_report_their_names_and_ids on MockConfig::new().seed("node-a")
        .gpus(Model::H100, 2, MigMode::Enabled).gpus(Model::T4, 1, MigMode::Enabled);
    profiles_and_places_are_those_of_the_model on MockConfig::new()
        .gpus(Model::H200, 1, MigMode::Disabled).gpus(Model::A30, 1, MigMode::Enabled);
    slices_are_cut_listed_and_destroyed on MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled);
    refusals_carry_nvmls_codes on MockConfig::new()
        .gpus(Model::H100, 1, MigMode::Enabled).gpus(Model::L4, 1, MigMode::Disabled);
    compute_instances_share_a_gpu_instance on MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled);
    an_rtx_is_cut_into_quarters_of_twelve on MockConfig::new().gpus(Model::RtxPro6000, 1, MigMode::Enabled);
    handles_die_with_their_instances on MockConfig::new().gpus(Model::A100Gb40, 1, MigMode::Enabled);
    mig_devices_are_indexed_with_holes on MockConfig::new().gpus(Model::A100Gb80, 1, MigMode::Enabled);
    mig_mode_is_switched on MockConfig::new()
        .gpus(Model::H200, 1, MigMode::Disabled).gpus(Model::A100Gb40, 1, MigMode::Disabled);
    processes_are_listed_and_hold_their_slice on MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled);
    faults_delays_and_hangs_strike on MockConfig::new().gpus(Model::H100, 2, MigMode::Enabled);
    a_reboot_under_a_running_agent_clears_its_slices on MockConfig::new()
        .gpus(Model::H100, 1, MigMode::Enabled);
    xids_wake_a_waiting_event_set on MockConfig::new().gpus(Model::H100, 2, MigMode::Disabled);
    wrong_pointers_versions_and_sizes_are_refused on MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled);
}

/// Creates 1g slices until there is no room. Two processes run it on one node at a time.
fn cut_all() {
    let nvml = init().unwrap();
    let raw = Raw::from_device(&nvml.device_by_index(0).unwrap());
    while raw.create(19, None).is_ok() {}
    assert_eq!(raw.remaining(19), Ok(0));
}

fn gpus_report_their_names_and_ids() {
    let nvml = init().unwrap();
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.159.04");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.159.04");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    assert_eq!(nvml.device_count().unwrap(), 3);
    assert_eq!(nvml.sys_process_name(std::process::id(), 4096).unwrap(), std::env::args().next().unwrap());

    let h100 = nvml.device_by_index(1).unwrap();
    assert_eq!(h100.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(h100.memory_info().unwrap().total, 81_559 * 1024 * 1024);
    let capability = h100.cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (9, 0));
    assert_eq!((h100.index().unwrap(), h100.minor_number().unwrap()), (1, 1));
    assert_eq!(h100.pci_info().unwrap().bus_id, "00000000:1F:00.0");
    assert_eq!(h100.pci_info().unwrap().pci_device_id, 0x2330_10DE);
    assert_eq!(format!("{:?}", h100.architecture().unwrap()), "Hopper");
    assert!(h100.is_idle());
    let (temperature, power) =
        (nvml_wrapper::enum_wrappers::device::TemperatureSensor::Gpu, h100.power_usage());
    assert_eq!((h100.temperature(temperature).unwrap(), power.unwrap() > 0), (31, true));

    let uuid = h100.uuid().unwrap();
    assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{uuid}");
    assert_ne!(uuid, nvml.device_by_index(0).unwrap().uuid().unwrap());
    assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), 1);
    assert_eq!(nvml.device_by_pci_bus_id("0000:1f:00.0").unwrap().index().unwrap(), 1);
    assert_eq!(h100.serial().unwrap().len(), 13);
    assert!(matches!(nvml.device_by_uuid("GPU-0"), Err(NvmlError::NotFound)));
    assert!(matches!(nvml.device_by_index(3), Err(NvmlError::InvalidArg)));

    let t4 = nvml.device_by_index(2).unwrap();
    assert_eq!(t4.name().unwrap(), "Tesla T4");
    assert!(matches!(t4.mig_mode(), Err(NvmlError::NotSupported)));
    assert!(matches!(t4.profile_info(0), Err(NvmlError::NotSupported)));
    assert_eq!(t4.mig_device_count().unwrap(), 0);
}

trait Idle {
    fn is_idle(&self) -> bool;
}

impl Idle for Device<'_> {
    fn is_idle(&self) -> bool {
        self.running_compute_processes().unwrap().is_empty()
            && self.running_graphics_processes().unwrap().is_empty()
            && self.mps_running_compute_processes().unwrap().is_empty()
    }
}

fn profiles_and_places_are_those_of_the_model() {
    let nvml = init().unwrap();
    let h200 = nvml.device_by_index(0).unwrap();
    let mode = h200.mig_mode().unwrap();
    assert_eq!((mode.current, mode.pending), (0, 0));
    // Profile index, id, maximum, multiprocessors, memory, name, places: as read from a real H200 with MIG off.
    let table = [
        (0, 19, 7, 16, 16384, "MIG 1g.18gb", vec![(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]),
        (7, 20, 1, 16, 16384, "MIG 1g.18gb+me", vec![(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]),
        (9, 15, 4, 26, 33280, "MIG 1g.35gb", vec![(0, 2), (2, 2), (4, 2), (6, 2)]),
        (1, 14, 3, 32, 33280, "MIG 2g.35gb", vec![(0, 2), (2, 2), (4, 2)]),
        (2, 9, 2, 60, 71424, "MIG 3g.71gb", vec![(0, 4), (4, 4)]),
        (3, 5, 1, 64, 71424, "MIG 4g.71gb", vec![(0, 4)]),
        (4, 0, 1, 132, 143_360, "MIG 7g.141gb", vec![(0, 8)]),
    ];
    let raw = Raw::from_device(&h200);
    for (index, id, max, multiprocessors, memory, name, places) in table {
        let v1 = h200.profile_info(index).unwrap();
        assert_eq!((v1.id, v1.instance_count, v1.memory_size_mb), (id, max, memory));
        let v2 = raw.profile(index).unwrap();
        assert_eq!((v2.id, v2.instanceCount, v2.multiprocessorCount), (id, max, multiprocessors));
        assert_eq!((raw::text(&v2.name), v2.version), (name.to_owned(), 0));
        assert_eq!(raw.places(id).unwrap(), places, "{name}");
        assert_eq!(raw.remaining(id).unwrap(), max, "{name}");
    }
    for (index, code) in [(5, 3), (8, 3), (16, 3), (17, 2), (99, 2)] {
        assert_eq!(raw.profile(index).unwrap_err(), code, "index {index}");
    }
    assert_eq!(raw.places(1).unwrap_err(), 2);
    assert_eq!(raw.create(19, Some((0, 1))).unwrap_err(), 3, "nothing is cut with MIG off");
    assert!(raw.instances(19, 7).unwrap().is_empty());

    let a30 = nvml.device_by_index(1).unwrap();
    let raw = Raw::from_device(&a30);
    let names: Vec<(u32, String)> = (0..17)
        .filter_map(|index| raw.profile(index).ok())
        .map(|profile| (profile.id, raw::text(&profile.name)))
        .collect();
    let names: Vec<(u32, &str)> = names.iter().map(|(id, name)| (*id, name.as_str())).collect();
    assert_eq!(
        names,
        [
            (14, "MIG 1g.6gb"),
            (5, "MIG 2g.12gb"),
            (0, "MIG 4g.24gb"),
            (21, "MIG 1g.6gb+me"),
            (6, "MIG 2g.12gb+me")
        ]
    );
    assert_eq!(raw.places(5).unwrap(), [(0, 2), (2, 2)]);
    assert_eq!(a30.mig_device_count().unwrap(), 4);
}

fn slices_are_cut_listed_and_destroyed() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);

    let big = raw.create(9, Some((4, 4))).unwrap();
    let info = raw.instance_info(big).unwrap();
    assert_eq!((info.id, info.profileId, info.placement.start, info.placement.size), (2, 9, 4, 4));
    let full = raw.compute_profile(big, 2).unwrap();
    assert_eq!((full.id, full.sliceCount, full.multiprocessorCount), (2, 3, 60));
    assert_eq!(raw::text(&full.name), "MIG 3g.40gb");
    assert_eq!(raw::text(&raw.compute_profile(big, 0).unwrap().name), "MIG 1c.3g.40gb");
    let compute = raw.create_compute(big, 2).unwrap();
    let mig = raw.device(compute);

    assert_eq!(mig.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 3g.40gb");
    let uuid = mig.uuid().unwrap();
    assert!(uuid.starts_with("MIG-"), "{uuid}");
    assert_eq!(mig.memory_info().unwrap().total, 40448 * 1024 * 1024);
    let attributes = mig.attributes().unwrap();
    assert_eq!((attributes.multiprocessor_count, attributes.memory_size_mb), (60, 40448));
    assert_eq!((attributes.gpu_instance_slice_count, attributes.compute_instance_slice_count), (3, 3));
    assert!(mig.mig_is_mig_device_handle().unwrap() && !gpu.mig_is_mig_device_handle().unwrap());
    assert_eq!(mig.mig_parent_device().unwrap().uuid().unwrap(), gpu.uuid().unwrap());
    assert_eq!(raw.ids_of(&mig).unwrap(), (2, 0));
    assert_eq!(raw.ids_of(&gpu).unwrap_err(), 2);
    assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().uuid().unwrap(), uuid);
    assert_eq!(gpu.mig_device_by_index(0).unwrap().uuid().unwrap(), uuid);

    assert_eq!(raw.instances(9, 2).unwrap(), [big]);
    assert_eq!(raw.compute_instances(big, 2, 1).unwrap(), [compute]);
    assert_eq!(raw.instance_by_id(2).unwrap(), big);
    assert_eq!(raw.remaining(9).unwrap(), 1);
    assert_eq!(raw.remaining(19).unwrap(), 4);
    let seen = MockState::load(&files().state).unwrap().slices();
    assert_eq!((seen.len(), seen[0].profile.as_str(), &seen[0].mig_uuids), (1, "3g.40gb", &vec![uuid]));

    assert_eq!(raw.destroy(big).unwrap_err(), 19);
    raw.destroy_compute(compute).unwrap();
    raw.destroy(big).unwrap();
    assert!(raw.instances(9, 2).unwrap().is_empty());
    // Without a placement the driver chooses: 1g goes to the far end first.
    let chosen = raw.create(19, None).unwrap();
    assert_eq!(raw.instance_info(chosen).unwrap().placement.start, 6);
    drop(nvml);
    let again = init().unwrap();
    let raw = Raw::from_device(&again.device_by_index(0).unwrap());
    assert_eq!(raw.instances(19, 7).unwrap().len(), 1, "an agent's restart loses nothing");
}

fn refusals_carry_nvmls_codes() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);
    raw.create(14, Some((0, 2))).unwrap();
    let refused = [(19, (1, 1), 23), (5, (0, 4), 23), (14, (6, 2), 2), (19, (7, 1), 2), (77, (0, 1), 2)];
    for (profile, place, code) in refused {
        assert_eq!(raw.create(profile, Some(place)).unwrap_err(), code, "{profile} at {place:?}");
    }
    raw.create(20, Some((4, 1))).unwrap();
    assert_eq!(raw.create(20, Some((5, 1))).unwrap_err(), 23, "one media extension");
    // A caller of nvml-wrapper gets codes from 23 on as a number.
    let code = nvml_wrapper::error::nvml_try(raw.create(0, Some((0, 8))).unwrap_err());
    assert!(matches!(code, Err(NvmlError::UnexpectedVariant(23))), "{code:?}");
    let l4 = Raw::from_device(&nvml.device_by_index(1).unwrap());
    assert_eq!(l4.create(19, Some((0, 1))).unwrap_err(), 3);
    assert_eq!(l4.instances(19, 7).unwrap_err(), 3);
}

fn compute_instances_share_a_gpu_instance() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);
    let outer = raw.create(5, Some((0, 4))).unwrap();
    assert_eq!(raw.compute_places(outer, 1).unwrap(), [(0, 2), (2, 2)]);
    assert_eq!(raw.compute_remaining(outer, 0).unwrap(), 4);

    let half = raw.create_compute_at(outer, 1, (2, 2)).unwrap();
    let [first, second] = [(); 2].map(|()| raw.create_compute(outer, 0).unwrap());
    let at = |compute| {
        let info = raw.compute_info(compute).unwrap();
        (info.id, info.profileId, info.placement.start, info.placement.size)
    };
    assert_eq!([at(half), at(first), at(second)], [(0, 1, 2, 2), (1, 0, 0, 1), (2, 0, 1, 1)]);
    assert_eq!((raw.compute_remaining(outer, 0).unwrap(), raw.compute_remaining(outer, 1).unwrap()), (0, 0));
    assert_eq!(raw.compute_instances(outer, 0, 4).unwrap(), [first, second]);
    assert_eq!(raw.compute_instances(outer, 1, 2).unwrap(), [half]);

    let refused = [(0, (3, 1), 23), (3, (0, 4), 23), (1, (1, 2), 2), (2, (0, 3), 2), (0, (4, 1), 2)];
    for (profile, place, code) in refused {
        assert_eq!(raw.create_compute_at(outer, profile, place).unwrap_err(), code, "{profile} at {place:?}");
    }
    assert_eq!(raw.create_compute(outer, 0).unwrap_err(), 23);

    let [half_device, first_device] = [half, first].map(|compute| raw.device(compute));
    assert_eq!(half_device.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 2c.4g.40gb");
    assert_eq!(first_device.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 1c.4g.40gb");
    let attributes = half_device.attributes().unwrap();
    assert_eq!((attributes.gpu_instance_slice_count, attributes.compute_instance_slice_count), (4, 2));
    assert_eq!((attributes.multiprocessor_count, attributes.memory_size_mb), (32, 40448));
    assert_eq!(first_device.attributes().unwrap().memory_size_mb, 40448);
    assert_ne!(half_device.uuid().unwrap(), first_device.uuid().unwrap());
    assert_eq!(raw.ids_of(&first_device).unwrap(), (1, 1));
    assert_eq!(gpu.mig_device_by_index(2).unwrap().uuid().unwrap(), raw.device(second).uuid().unwrap());

    // A process holds its own compute instance and the GPU instance, but not its neighbours.
    let process = Process { ci: Some(1), ..Process::on_instance(41, 0, 1, 512) };
    MockControl::new().process(process).write(&files().control).unwrap();
    assert_eq!(first_device.running_compute_processes().unwrap().len(), 1);
    assert!(half_device.running_compute_processes().unwrap().is_empty());
    assert_eq!(raw.destroy_compute(first).unwrap_err(), 19);
    raw.destroy_compute(half).unwrap();
    assert_eq!(raw.compute_remaining(outer, 1).unwrap(), 1);
    assert_eq!(raw.destroy(outer).unwrap_err(), 19);
    MockControl::new().write(&files().control).unwrap();
    raw.destroy_compute(second).unwrap();
    assert_eq!(raw.destroy(outer).unwrap_err(), 19, "a compute instance is still there");
    raw.destroy_compute(first).unwrap();
    raw.destroy(outer).unwrap();
}

fn an_rtx_is_cut_into_quarters_of_twelve() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);
    assert_eq!(gpu.mig_device_count().unwrap(), 4);
    assert_eq!(raw.places(67).unwrap(), [(0, 3), (3, 3), (6, 3), (9, 3)]);
    let names: Vec<String> =
        (0..17).filter_map(|index| raw.profile(index).ok()).map(|profile| raw::text(&profile.name)).collect();
    assert_eq!((names.len(), names[0].as_str()), (11, "MIG 1g.24gb"));
    let media = raw.profile(15).unwrap();
    assert_eq!((media.id, media.decoderCount, media.encoderCount, media.ofaCount), (65, 4, 4, 1));
    raw.create(64, Some((6, 6))).unwrap();
    assert_eq!(raw.create(21, Some((0, 3))).unwrap_err(), 23, "the media engines are taken");
    let plain = raw.create(67, Some((0, 3))).unwrap();
    let device = raw.device(raw.create_compute(plain, 0).unwrap());
    assert_eq!(device.name().unwrap(), "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb-me");
}

fn handles_die_with_their_instances() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);
    let first = raw.create(14, Some((2, 2))).unwrap();
    let compute = raw.create_compute(first, 1).unwrap();
    let mig = raw.device(compute);
    let uuid = mig.uuid().unwrap();
    raw.destroy_compute(compute).unwrap();
    assert_eq!(raw.destroy_compute(compute).unwrap_err(), 6);
    raw.destroy(first).unwrap();
    let second = raw.create(14, Some((2, 2))).unwrap();
    assert_eq!(raw.instance_info(second).unwrap().id, 4, "the id is free again");
    assert_eq!(raw.instance_info(first).unwrap_err(), 6, "and the old handle is no handle to it");
    assert!(matches!(mig.uuid(), Err(NvmlError::NotFound)));
    let again = raw.device(raw.create_compute(second, 1).unwrap());
    assert_ne!(again.uuid().unwrap(), uuid);
    assert!(matches!(nvml.device_by_uuid(uuid.as_str()), Err(NvmlError::NotFound)));
}

fn mig_devices_are_indexed_with_holes() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);
    assert_eq!(gpu.mig_device_count().unwrap(), 7);
    let cut: Vec<_> = (0..3)
        .map(|start| {
            let instance = raw.create(19, Some((start, 1))).unwrap();
            raw.create_compute(instance, 0).unwrap()
        })
        .collect();
    raw.destroy_compute(cut[1]).unwrap();
    let present: Vec<bool> = (0..7)
        .map(|index| match gpu.mig_device_by_index(index) {
            Ok(_) => true,
            Err(NvmlError::NotFound) => false,
            Err(error) => unreachable!("{error}"),
        })
        .collect();
    assert_eq!(present, [true, false, true, false, false, false, false]);
}

fn mig_mode_is_switched() {
    let nvml = init().unwrap();
    let [hopper, mut ampere] = [0, 1].map(|index| nvml.device_by_index(index).unwrap());
    assert_eq!(hopper.mig_device_count().unwrap(), 0);
    assert_eq!(hopper.set_mig_mode(true).unwrap(), 0);
    assert_eq!(hopper.mig_mode().unwrap().current, 1);
    assert_eq!(hopper.minor_number().unwrap(), 2, "the number from before the switch is wrong");
    assert_eq!(hopper.mig_device_count().unwrap(), 7);
    let raw = Raw::from_device(&hopper);
    let instance = raw.create(19, Some((0, 1))).unwrap();
    assert_eq!(hopper.set_mig_mode(false).unwrap(), NvmlCode::IN_USE.0);
    assert_eq!((hopper.mig_mode().unwrap().current, hopper.mig_mode().unwrap().pending), (1, 0));
    raw.destroy(instance).unwrap();
    assert_eq!(hopper.set_mig_mode(false).unwrap(), 0);

    assert_eq!(ampere.set_mig_mode(true).unwrap(), NvmlCode::RESET_REQUIRED.0);
    assert_eq!((ampere.mig_mode().unwrap().current, ampere.mig_mode().unwrap().pending), (0, 1));
    MockControl::new().reset("r1", 1).write(&files().control).unwrap();
    assert_eq!(ampere.mig_mode().unwrap().current, 1);
    assert_eq!(ampere.set_mig_mode(false).unwrap(), NvmlCode::RESET_REQUIRED.0);
    MockControl::new().boot("boot-2").write(&files().control).unwrap();
    assert_eq!(ampere.mig_mode().unwrap().current, 0);
    ampere.set_compute_mode(nvml_wrapper::enum_wrappers::device::ComputeMode::ExclusiveProcess).unwrap();
    assert_eq!(MockState::load(&files().state).unwrap().gpus[1].compute_mode, 3);
}

fn processes_are_listed_and_hold_their_slice() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);
    let migs: Vec<_> = [(19, 0, 0), (14, 2, 1)]
        .into_iter()
        .map(|(profile, start, compute)| {
            let instance = raw.create(profile, Some((start, if profile == 14 { 2 } else { 1 }))).unwrap();
            let compute = raw.create_compute(instance, compute).unwrap();
            (instance, compute, raw.device(compute))
        })
        .collect();
    let mps = Process::on_instance(42, 0, 4, 300).of_kind(ProcessKind::Mps);
    let control = MockControl::new().process(Process::on_instance(41, 0, 7, 512)).process(mps);
    control.write(&files().control).unwrap();

    let listed = |list: Vec<nvml_wrapper::struct_wrappers::device::ProcessInfo>| -> Vec<_> {
        list.iter().map(|one| (one.pid, one.gpu_instance_id, one.compute_instance_id)).collect()
    };
    // A client of an MPS server is in both lists. The parent's lists show the instance of each process.
    let on_gpu = listed(gpu.running_compute_processes().unwrap());
    assert_eq!(on_gpu, [(41, Some(7), Some(0)), (42, Some(4), Some(0))]);
    assert_eq!(listed(gpu.mps_running_compute_processes().unwrap()), [(42, Some(4), Some(0))]);
    assert_eq!(migs[0].2.running_compute_processes().unwrap().len(), 1);
    assert_eq!(listed(migs[1].2.running_compute_processes().unwrap()), [(42, Some(4), Some(0))]);
    assert!(migs[0].2.mps_running_compute_processes().unwrap().is_empty());
    assert_eq!(raw.process_count(raw.lib().nvmlDeviceGetMPSComputeRunningProcesses_v3.as_ref()), (7, 1));
    assert_eq!(migs[0].2.memory_info().unwrap().used, 512 * 1024 * 1024);
    assert_eq!(gpu.memory_info().unwrap().used, 812 * 1024 * 1024);
    for (_, compute, _) in &migs {
        assert_eq!(raw.destroy_compute(*compute).unwrap_err(), 19);
    }
    MockControl::new().write(&files().control).unwrap();
    for (instance, compute, _) in &migs {
        raw.destroy_compute(*compute).unwrap();
        raw.destroy(*instance).unwrap();
    }
}

fn faults_delays_and_hangs_strike() {
    const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
    let nvml = init().unwrap();
    let [first, second] = [0, 1].map(|index| Raw::from_device(&nvml.device_by_index(index).unwrap()));
    let fault = Fault::new(CREATE, NvmlCode::IN_USE).times(2).on_gpu(0);
    MockControl::new().fault(fault).write(&files().control).unwrap();
    second.create(19, Some((0, 1))).unwrap();
    assert_eq!(first.create(19, Some((0, 1))).unwrap_err(), 19);
    assert_eq!(first.create(19, Some((0, 1))).unwrap_err(), 19);
    first.create(19, Some((0, 1))).unwrap();

    let lost = Fault::new(CREATE, NvmlCode::TIMEOUT).times(1).after_effect();
    MockControl::new().fault(lost).write(&files().control).unwrap();
    assert_eq!(first.create(19, Some((1, 1))).unwrap_err(), 10);
    assert_eq!(first.instances(19, 7).unwrap().len(), 2, "the cut was made and its answer lost");

    let gone = Fault::new("*", NvmlCode::GPU_IS_LOST).on_gpu(1);
    MockControl::new().fault(gone).write(&files().control).unwrap();
    assert!(matches!(nvml.device_by_index(1), Err(NvmlError::GpuLost)));
    assert!(nvml.device_by_index(0).is_ok() && nvml.device_count().is_ok());

    MockControl::new()
        .delay("nvmlGpuInstanceDestroy", Duration::from_millis(120))
        .write(&files().control)
        .unwrap();
    let start = Instant::now();
    first.destroy(first.instances(19, 7).unwrap()[0]).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(120));

    MockControl::new().hang("nvmlDeviceGetCount_v2").write(&files().control).unwrap();
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| nvml.device_count().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!hanging.is_finished());
        assert_eq!(first.instances(19, 7).unwrap().len(), 1, "others go on meanwhile");
        std::fs::remove_file(files().control).unwrap();
        assert_eq!(hanging.join().unwrap(), 2);
    });
}

fn a_reboot_under_a_running_agent_clears_its_slices() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);
    let uuid = gpu.uuid().unwrap();
    let instance = raw.create(9, Some((0, 4))).unwrap();
    MockControl::new().boot("boot-2").write(&files().control).unwrap();
    assert_eq!(raw.instance_info(instance).unwrap_err(), 6);
    assert_eq!(gpu.mig_mode().unwrap().current, 0, "Hopper loses MIG mode");
    assert_eq!(gpu.uuid().unwrap(), uuid);
}

fn xids_wake_a_waiting_event_set() {
    use nvml_wrapper::bitmasks::event::EventTypes;
    use nvml_wrapper::enums::event::XidError;

    let nvml = init().unwrap();
    let past = Xid { id: "past".to_owned(), gpu: 1, xid: 13, gi: None, ci: None };
    let mut control = MockControl { xids: vec![past], ..MockControl::new() };
    control.write(&files().control).unwrap();
    let set = nvml.create_event_set().unwrap();
    let gpu = nvml.device_by_index(1).unwrap();
    let set = gpu.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    assert!(matches!(set.wait(30), Err(NvmlError::Timeout)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            control.xids.push(Xid { id: "new".to_owned(), gpu: 1, xid: 79, gi: None, ci: None });
            control.write(&files().control).unwrap();
        });
        let event = set.wait(5000).unwrap();
        assert_eq!(event.device.index().unwrap(), 1);
        assert_eq!(event.event_data, Some(XidError::Value(79)));
    });
    assert!(matches!(set.wait(30), Err(NvmlError::Timeout)), "each XID is delivered once");
}

fn wrong_pointers_versions_and_sizes_are_refused() {
    let nvml = init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let raw = Raw::from_device(&gpu);
    // As an H200 under driver 580 answers: 13 for memory, 2 for profiles.
    assert_eq!(raw.memory_version(0x0200_0028), 0);
    assert_eq!(raw.memory_version(0x0100_0028), 13);
    assert_eq!(raw.profile_version(0x0200_0098), 0);
    assert_eq!(raw.profile_version(0x0300_0098), 0);
    for version in [0, 0x0100_0030, 0x0200_0090, 0x0400_0098] {
        assert_eq!(raw.profile_version(version), 2, "{version:x}");
    }
    assert_eq!(raw.name_in(4), 7);
    assert_eq!(raw.name_in(96), 0);
    assert_eq!(raw.null_count(), 2);
    assert_eq!(raw.garbage_handles(), [2, 2, 2, 2]);
}

#[test]
fn without_the_environment_there_is_no_driver() {
    if std::env::var_os(kerf_nvml_mock::STATE_ENV).is_some() {
        return;
    }
    assert!(matches!(init(), Err(NvmlError::DriverNotLoaded)));
}

#[test]
fn a_broken_configuration_is_reported_on_stderr() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let output = run("gpus_report_their_names_and_ids", folder.path());
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("kerf-nvml-mock") && stderr.contains("config.json"), "{stderr}");
}

#[test]
fn two_processes_cut_one_gpu_without_sharing_a_slice() {
    let folder = tempfile::tempdir().unwrap();
    let files = MockFiles::in_folder(folder.path());
    MockConfig::new().gpus(Model::H100, 1, MigMode::Enabled).write(&files.config).unwrap();
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..2).map(|_| scope.spawn(|| run("cut_all", folder.path()))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let state = MockState::load(&files.state).unwrap();
    assert_eq!(state.gpus[0].instances.len(), 7);
    assert!(state.gpus[0].violations().is_empty());
}
